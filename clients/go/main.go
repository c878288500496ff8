// Runs every scenario of ../README.md against a server and prints a line for each.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "chairlift.example/go/chairlift/v1"
)

// A refused call is sent again; what has begun to answer never is.
const serviceConfig = `{
  "methodConfig": [{
    "name": [{"service": "chairlift.v1.GenerationService", "method": "GenerateOne"}],
    "retryPolicy": {
      "maxAttempts": 5,
      "initialBackoff": "0.5s",
      "maxBackoff": "2s",
      "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]
    }
  }]
}`

// bearer puts a token into the metadata of every call, over TLS alone.
type bearer string

func (token bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

func connect(address, ca string, options ...grpc.DialOption) *grpc.ClientConn {
	pem, err := os.ReadFile(ca)
	check(err)
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		log.Fatalf("%s: expected PEM certificates", ca)
	}
	transport := credentials.NewTLS(&tls.Config{RootCAs: authorities})
	options = append(options, grpc.WithTransportCredentials(transport), grpc.WithDefaultServiceConfig(serviceConfig))
	connection, err := grpc.NewClient(address, options...)
	check(err)
	return connection
}

func main() {
	address := flag.String("address", "localhost:50051", "HOST:PORT of the server")
	ca := flag.String("tls-ca", "ca.pem", "PEM file of the authority of its certificate")
	token := flag.String("token", "", "bearer token")
	flag.Parse()
	connection := connect(*address, *ca, grpc.WithPerRPCCredentials(bearer(*token)))
	defer connection.Close()
	client := pb.NewGenerationServiceClient(connection)
	stream(client)
	cancel(client)
	credit(client)
	resume(client)
	deadline(client)
	withoutToken(connect(*address, *ca))
	retry(client)
}

// start is a request for exactly so many tokens, the likeliest ones.
func start(id string, maxTokens uint32) *pb.Start {
	temperature, ignoreEos := float32(0), true
	return &pb.Start{
		RequestId: id,
		Prompt:    &pb.Start_Text{Text: "Once upon a time"},
		Sampling:  &pb.Sampling{Temperature: &temperature},
		Stopping:  &pb.Stopping{MaxTokens: &maxTokens, IgnoreEos: &ignoreEos},
	}
}

type call = grpc.BidiStreamingClient[pb.GenerateRequest, pb.GenerateResponse]

func open(ctx context.Context, client pb.GenerationServiceClient) call {
	opened, err := client.Generate(ctx)
	check(err)
	return opened
}

func begin(opened call, request *pb.Start) {
	check(opened.Send(&pb.GenerateRequest{Command: &pb.GenerateRequest_Start{Start: request}}))
}

// events calls a function for each event until it returns false or the stream ends.
func events(opened call, function func(*pb.Event) bool) {
	for {
		response, err := opened.Recv()
		if err == io.EOF {
			return
		}
		check(err)
		for _, event := range response.Events {
			if failed := event.GetFailed(); failed != nil {
				log.Fatalf("%s: %s", failed.Error.Reason, failed.Error.Message)
			}
			if rejected := event.GetRejected(); rejected != nil {
				log.Fatalf("%s: %s", rejected.Error.Reason, rejected.Error.Message)
			}
			if !function(event) {
				return
			}
		}
	}
}

// Many requests share one stream.
func stream(client pb.GenerationServiceClient) {
	opened := open(context.Background(), client)
	for _, id := range []string{"a", "b", "c"} {
		begin(opened, start(id, 24))
	}
	check(opened.CloseSend())
	tokens := map[string]uint32{}
	events(opened, func(event *pb.Event) bool {
		tokens[event.RequestId] += event.GetTokens().GetNumTokens()
		return true
	})
	fmt.Printf("stream: a %d, b %d, c %d\n", tokens["a"], tokens["b"], tokens["c"])
}

// A request ends early, and its stream goes on.
func cancel(client pb.GenerationServiceClient) {
	opened := open(context.Background(), client)
	endless := start("a", 100)
	// Without credit for more it cannot end before the cancel arrives.
	one := uint32(1)
	endless.Credit = &one
	begin(opened, endless)
	events(opened, func(event *pb.Event) bool {
		if event.GetTokens() != nil {
			command := &pb.GenerateRequest_Cancel{Cancel: &pb.Cancel{RequestId: "a"}}
			check(opened.Send(&pb.GenerateRequest{Command: command}))
			check(opened.CloseSend())
		}
		if finished := event.GetFinished(); finished != nil {
			fmt.Println("cancel:", strings.TrimPrefix(finished.Reason.String(), "FINISH_REASON_"))
		}
		return true
	})
}

// A client that is slow allows only as many tokens as it can take.
func credit(client pb.GenerationServiceClient) {
	opened := open(context.Background(), client)
	request := start("a", 12)
	allowed, before, total := uint32(5), uint32(0), uint32(0)
	request.Credit = &allowed
	begin(opened, request)
	events(opened, func(event *pb.Event) bool {
		total += event.GetTokens().GetNumTokens()
		if total == allowed && before == 0 {
			before = total
			more := &pb.GenerateRequest_Credit{Credit: &pb.Credit{RequestId: "a", Tokens: 50}}
			check(opened.Send(&pb.GenerateRequest{Command: more}))
			check(opened.CloseSend())
		}
		return true
	})
	fmt.Printf("credit: %d, then %d\n", before, total)
}

// A request outlives its stream, and another stream goes on with it.
func resume(client pb.GenerationServiceClient) {
	var whole, got strings.Builder
	opened := open(context.Background(), client)
	begin(opened, start("a", 60))
	check(opened.CloseSend())
	events(opened, func(event *pb.Event) bool {
		whole.WriteString(event.GetTokens().GetText())
		return true
	})

	ctx, lose := context.WithCancel(context.Background())
	opened = open(ctx, client)
	request := start("a", 60)
	request.ResumeWindow = durationpb.New(time.Minute)
	begin(opened, request)
	handle, number := "", uint32(0)
	note := func(event *pb.Event) {
		if accepted := event.GetAccepted(); accepted != nil {
			handle = accepted.Handle
		}
		got.WriteString(event.GetTokens().GetText())
		number = event.Number
	}
	events(opened, func(event *pb.Event) bool {
		note(event)
		return event.GetTokens() == nil
	})
	lose()

	opened = open(context.Background(), client)
	command := &pb.Resume{Handle: handle, AfterNumber: number, RequestId: "b"}
	check(opened.Send(&pb.GenerateRequest{Command: &pb.GenerateRequest_Resume{Resume: command}}))
	check(opened.CloseSend())
	events(opened, func(event *pb.Event) bool {
		note(event)
		return true
	})
	if whole.String() == got.String() {
		fmt.Println("resume: the same text")
	} else {
		fmt.Printf("resume: %q instead of %q\n", got.String(), whole.String())
	}
}

// The deadline of a call ends it, whatever its requests wait for.
func deadline(client pb.GenerationServiceClient) {
	ctx, done := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer done()
	opened := open(ctx, client)
	request := start("a", 10)
	none := uint32(0)
	request.Credit = &none
	begin(opened, request)
	for {
		if _, err := opened.Recv(); err != nil {
			fmt.Println("deadline:", name(err))
			return
		}
	}
}

func withoutToken(connection *grpc.ClientConn) {
	defer connection.Close()
	_, err := pb.NewServerServiceClient(connection).GetServerInfo(context.Background(), &pb.GetServerInfoRequest{})
	fmt.Println("token:", name(err))
}

// More calls at once than the tenant may make in a second: those that are refused are sent again.
func retry(client pb.GenerationServiceClient) {
	var answered atomic.Int32
	var calls sync.WaitGroup
	for range 30 {
		calls.Go(func() {
			opened, err := client.GenerateOne(context.Background(), &pb.GenerateOneRequest{Start: start("", 1)})
			check(err)
			for {
				if _, err = opened.Recv(); err != nil {
					break
				}
			}
			if err == io.EOF {
				answered.Add(1)
			}
		})
	}
	calls.Wait()
	fmt.Printf("retry: %d of 30\n", answered.Load())
}

// name returns a status code as the other languages write it.
func name(err error) string {
	names := map[codes.Code]string{
		codes.DeadlineExceeded: "DEADLINE_EXCEEDED",
		codes.Unauthenticated:  "UNAUTHENTICATED",
	}
	code := status.Code(err)
	if name, known := names[code]; known {
		return name
	}
	return code.String()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
