package example.chairlift;

import example.chairlift.v1.Cancel;
import example.chairlift.v1.Credit;
import example.chairlift.v1.Event;
import example.chairlift.v1.GenerateOneRequest;
import example.chairlift.v1.GenerateOneResponse;
import example.chairlift.v1.GenerateRequest;
import example.chairlift.v1.GenerateResponse;
import example.chairlift.v1.GenerationServiceGrpc;
import example.chairlift.v1.GetServerInfoRequest;
import example.chairlift.v1.Resume;
import example.chairlift.v1.Sampling;
import example.chairlift.v1.ServerServiceGrpc;
import example.chairlift.v1.Start;
import example.chairlift.v1.Stopping;
import com.google.protobuf.Duration;
import io.grpc.CallCredentials;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.StreamObserver;
import java.io.File;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Runs every scenario of ../README.md against a server and prints a line for each. */
public final class Scenarios {
  /** A refused call is sent again; what has begun to answer never is. */
  private static final Map<String, ?> SERVICE_CONFIG =
      Map.of(
          "methodConfig",
          List.of(
              Map.of(
                  "name",
                  List.of(Map.of("service", "chairlift.v1.GenerationService", "method", "GenerateOne")),
                  "retryPolicy",
                  Map.of(
                      "maxAttempts", 5.0,
                      "initialBackoff", "0.5s",
                      "maxBackoff", "2s",
                      "backoffMultiplier", 2.0,
                      "retryableStatusCodes", List.of("UNAVAILABLE", "RESOURCE_EXHAUSTED")))));

  private final GenerationServiceGrpc.GenerationServiceStub client;
  private final ManagedChannel channel;

  private Scenarios(ManagedChannel channel, String token) {
    this.channel = channel;
    this.client = GenerationServiceGrpc.newStub(channel).withCallCredentials(new Bearer(token));
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      options.put(arguments[i].replaceFirst("^-+", ""), arguments[i + 1]);
    }
    ChannelCredentials tls =
        TlsChannelCredentials.newBuilder()
            .trustManager(new File(options.getOrDefault("tls-ca", "ca.pem")))
            .build();
    ManagedChannel channel =
        Grpc.newChannelBuilder(options.getOrDefault("address", "localhost:50051"), tls)
            .defaultServiceConfig(SERVICE_CONFIG)
            .enableRetry()
            .build();
    try {
      Scenarios scenarios = new Scenarios(channel, options.getOrDefault("token", ""));
      scenarios.stream();
      scenarios.cancel();
      scenarios.credit();
      scenarios.resume();
      scenarios.deadline();
      scenarios.withoutToken();
      scenarios.retry();
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
  }

  /** Puts a token into the metadata of every call. */
  private static final class Bearer extends CallCredentials {
    private static final Metadata.Key<String> KEY =
        Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    private final String token;

    Bearer(String token) {
      this.token = token;
    }

    @Override
    public void applyRequestMetadata(RequestInfo info, Executor executor, MetadataApplier applier) {
      Metadata metadata = new Metadata();
      metadata.put(KEY, "Bearer " + token);
      applier.apply(metadata);
    }
  }

  /** One Generate call, read in order; its events wait in a queue. */
  private static final class Call
      implements ClientResponseObserver<GenerateRequest, GenerateResponse> {
    private final BlockingQueue<Object> items = new LinkedBlockingQueue<>();
    private ClientCallStreamObserver<GenerateRequest> commands;

    static Call open(GenerationServiceGrpc.GenerationServiceStub client) {
      Call call = new Call();
      client.generate(call);
      return call;
    }

    @Override
    public void beforeStart(ClientCallStreamObserver<GenerateRequest> stream) {
      commands = stream;
    }

    @Override
    public void onNext(GenerateResponse response) {
      items.addAll(response.getEventsList());
    }

    @Override
    public void onError(Throwable error) {
      items.add(error);
    }

    @Override
    public void onCompleted() {
      items.add(Status.OK);
    }

    void start(Start.Builder request) {
      commands.onNext(GenerateRequest.newBuilder().setStart(request).build());
    }

    void halfClose() {
      commands.onCompleted();
    }

    void lose() {
      commands.cancel("lost", null);
    }

    /** Returns the next event, or null at the end. */
    Event next() throws InterruptedException {
      Object item = items.take();
      if (item == Status.OK) {
        return null;
      }
      if (item instanceof RuntimeException error) {
        throw error;
      }
      Event event = (Event) item;
      if (event.hasFailed()) {
        throw new IllegalStateException(event.getFailed().getError().toString());
      }
      if (event.hasRejected()) {
        throw new IllegalStateException(event.getRejected().getError().toString());
      }
      return event;
    }
  }

  /** A request for exactly so many tokens, the likeliest ones. */
  private static Start.Builder start(String id, int maxTokens) {
    return Start.newBuilder()
        .setRequestId(id)
        .setText("Once upon a time")
        .setSampling(Sampling.newBuilder().setTemperature(0))
        .setStopping(Stopping.newBuilder().setMaxTokens(maxTokens).setIgnoreEos(true));
  }

  /** Many requests share one stream. */
  private void stream() throws InterruptedException {
    Call call = Call.open(client);
    for (String id : List.of("a", "b", "c")) {
      call.start(start(id, 24));
    }
    call.halfClose();
    Map<String, Integer> tokens = new HashMap<>();
    for (Event event = call.next(); event != null; event = call.next()) {
      tokens.merge(event.getRequestId(), event.getTokens().getNumTokens(), Integer::sum);
    }
    System.out.printf(
        "stream: a %d, b %d, c %d%n", tokens.get("a"), tokens.get("b"), tokens.get("c"));
  }

  /** A request ends early, and its stream goes on. */
  private void cancel() throws InterruptedException {
    Call call = Call.open(client);
    // Without credit for more it cannot end before the cancel arrives.
    call.start(start("a", 100).setCredit(1));
    for (Event event = call.next(); event != null; event = call.next()) {
      if (event.hasTokens()) {
        Cancel cancel = Cancel.newBuilder().setRequestId("a").build();
        call.commands.onNext(GenerateRequest.newBuilder().setCancel(cancel).build());
        call.halfClose();
      }
      if (event.hasFinished()) {
        String reason = event.getFinished().getReason().name();
        System.out.println("cancel: " + reason.replace("FINISH_REASON_", ""));
      }
    }
  }

  /** A client that is slow allows only as many tokens as it can take. */
  private void credit() throws InterruptedException {
    Call call = Call.open(client);
    call.start(start("a", 12).setCredit(5));
    int before = 0;
    int total = 0;
    for (Event event = call.next(); event != null; event = call.next()) {
      total += event.getTokens().getNumTokens();
      if (total == 5 && before == 0) {
        before = total;
        Credit credit = Credit.newBuilder().setRequestId("a").setTokens(50).build();
        call.commands.onNext(GenerateRequest.newBuilder().setCredit(credit).build());
        call.halfClose();
      }
    }
    System.out.printf("credit: %d, then %d%n", before, total);
  }

  /** A request outlives its stream, and another stream goes on with it. */
  private void resume() throws InterruptedException {
    StringBuilder whole = new StringBuilder();
    StringBuilder got = new StringBuilder();
    Call uncut = Call.open(client);
    uncut.start(start("a", 60));
    uncut.halfClose();
    for (Event event = uncut.next(); event != null; event = uncut.next()) {
      whole.append(event.getTokens().getText());
    }

    Call lost = Call.open(client);
    lost.start(start("a", 60).setResumeWindow(Duration.newBuilder().setSeconds(60)));
    String handle = lost.next().getAccepted().getHandle();
    Event first = lost.next();
    got.append(first.getTokens().getText());
    lost.lose();

    Call call = Call.open(client);
    Resume resume =
        Resume.newBuilder()
            .setHandle(handle)
            .setAfterNumber(first.getNumber())
            .setRequestId("b")
            .build();
    call.commands.onNext(GenerateRequest.newBuilder().setResume(resume).build());
    call.halfClose();
    for (Event event = call.next(); event != null; event = call.next()) {
      got.append(event.getTokens().getText());
    }
    boolean isSame = whole.toString().equals(got.toString());
    System.out.println("resume: " + (isSame ? "the same text" : got + " instead of " + whole));
  }

  /** The deadline of a call ends it, whatever its requests wait for. */
  private void deadline() throws InterruptedException {
    Call call = Call.open(client.withDeadlineAfter(500, TimeUnit.MILLISECONDS));
    call.start(start("a", 10).setCredit(0));
    try {
      for (Event event = call.next(); event != null; event = call.next()) {}
    } catch (StatusRuntimeException error) {
      System.out.println("deadline: " + error.getStatus().getCode());
    }
  }

  private void withoutToken() {
    try {
      ServerServiceGrpc.newBlockingStub(channel)
          .getServerInfo(GetServerInfoRequest.getDefaultInstance());
    } catch (StatusRuntimeException error) {
      System.out.println("token: " + error.getStatus().getCode());
    }
  }

  /** More calls at once than the tenant may make in a second: refused ones are sent again. */
  private void retry() throws InterruptedException {
    int num = 30;
    AtomicInteger answered = new AtomicInteger();
    CountDownLatch left = new CountDownLatch(num);
    GenerateOneRequest request = GenerateOneRequest.newBuilder().setStart(start("", 1)).build();
    for (int i = 0; i < num; i++) {
      client.generateOne(
          request,
          new StreamObserver<GenerateOneResponse>() {
            @Override
            public void onNext(GenerateOneResponse response) {}

            @Override
            public void onError(Throwable error) {
              left.countDown();
            }

            @Override
            public void onCompleted() {
              answered.incrementAndGet();
              left.countDown();
            }
          });
    }
    left.await();
    System.out.printf("retry: %d of %d%n", answered.get(), num);
  }
}
