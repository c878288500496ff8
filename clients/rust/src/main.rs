//! Runs every scenario of `../README.md` against a server and prints a line for each.

use std::{collections::HashMap, env, error::Error, fs, time::Duration};

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::MetadataValue,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig},
};

#[allow(clippy::all)]
pub mod pb {
    tonic::include_proto!("chairlift.v1");
}

use pb::{
    Cancel, Credit, Event, FinishReason, GenerateOneRequest, GenerateRequest, GenerateResponse,
    GetServerInfoRequest, Resume, Sampling, Start, Stopping, event, generate_request::Command,
    generation_service_client::GenerationServiceClient, server_service_client::ServerServiceClient,
    start::Prompt,
};

type Failure = Box<dyn Error>;
type Client = GenerationServiceClient<InterceptedService<Channel, Bearer>>;

/// Puts a token into the metadata of every call.
#[derive(Clone)]
struct Bearer(MetadataValue<tonic::metadata::Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert("authorization", self.0.clone());
        Ok(request)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let options: HashMap<&str, &str> = arguments
        .chunks_exact(2)
        .map(|pair| (pair[0].trim_start_matches('-'), pair[1].as_str()))
        .collect();
    let address = *options.get("address").unwrap_or(&"localhost:50051");
    let authority = fs::read(options.get("tls-ca").unwrap_or(&"ca.pem"))?;
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    let channel = Channel::from_shared(format!("https://{address}"))?
        .tls_config(tls)?
        .connect()
        .await?;
    let token = format!("Bearer {}", options.get("token").unwrap_or(&""));
    let bearer = Bearer(token.parse()?);
    let client = GenerationServiceClient::with_interceptor(channel.clone(), bearer);
    stream(client.clone()).await?;
    cancel(client.clone()).await?;
    credit(client.clone()).await?;
    resume(client.clone()).await?;
    deadline(client.clone()).await?;
    without_token(channel).await;
    retry(client).await?;
    Ok(())
}

/// A request for exactly so many tokens, the likeliest ones.
fn start(id: &str, max_tokens: u32) -> Start {
    Start {
        request_id: id.to_owned(),
        prompt: Some(Prompt::Text("Once upon a time".to_owned())),
        sampling: Some(Sampling {
            temperature: Some(0.0),
            ..Sampling::default()
        }),
        stopping: Some(Stopping {
            max_tokens: Some(max_tokens),
            ignore_eos: Some(true),
            ..Stopping::default()
        }),
        ..Start::default()
    }
}

/// One `Generate` call: commands go in while events come out.
struct Call {
    commands: Option<mpsc::UnboundedSender<GenerateRequest>>,
    responses: Streaming<GenerateResponse>,
}

impl Call {
    async fn open(mut client: Client, first: Command) -> Result<Self, Failure> {
        let (commands, outgoing) = mpsc::unbounded_channel();
        // The server sends headers with its first event, so that a command has to be there before.
        commands.send(GenerateRequest {
            command: Some(first),
        })?;
        let outgoing = UnboundedReceiverStream::new(outgoing);
        let responses = client.generate(outgoing).await?.into_inner();
        Ok(Self {
            commands: Some(commands),
            responses,
        })
    }

    fn send(&self, command: Command) -> Result<(), Failure> {
        let commands = self.commands.as_ref().ok_or("the call is half-closed")?;
        Ok(commands.send(GenerateRequest {
            command: Some(command),
        })?)
    }

    fn half_close(&mut self) {
        self.commands = None;
    }

    /// The events of the next message; none at the end.
    async fn next(&mut self) -> Result<Option<Vec<Event>>, Failure> {
        let Some(response) = self.responses.message().await? else {
            return Ok(None);
        };
        for event in &response.events {
            let error = match &event.event {
                Some(event::Event::Failed(failed)) => &failed.error,
                Some(event::Event::Rejected(rejected)) => &rejected.error,
                _ => &None,
            };
            if let Some(error) = error {
                return Err(format!("{}: {}", error.reason, error.message).into());
            }
        }
        Ok(Some(response.events))
    }
}

fn tokens(event: &Event) -> Option<&pb::Tokens> {
    match &event.event {
        Some(event::Event::Tokens(tokens)) => Some(tokens),
        _ => None,
    }
}

/// Many requests share one stream.
async fn stream(client: Client) -> Result<(), Failure> {
    let mut call = Call::open(client, Command::Start(start("a", 24))).await?;
    call.send(Command::Start(start("b", 24)))?;
    call.send(Command::Start(start("c", 24)))?;
    call.half_close();
    let mut counts = HashMap::<String, u32>::new();
    while let Some(events) = call.next().await? {
        for event in events {
            let num = tokens(&event).map_or(0, |tokens| tokens.num_tokens);
            *counts.entry(event.request_id).or_default() += num;
        }
    }
    println!(
        "stream: a {}, b {}, c {}",
        counts["a"], counts["b"], counts["c"]
    );
    Ok(())
}

/// A request ends early, and its stream goes on.
async fn cancel(client: Client) -> Result<(), Failure> {
    let request = Start {
        // Without credit for more it cannot end before the cancel arrives.
        credit: Some(1),
        ..start("a", 100)
    };
    let mut call = Call::open(client, Command::Start(request)).await?;
    while let Some(events) = call.next().await? {
        for event in events {
            if tokens(&event).is_some() {
                call.send(Command::Cancel(Cancel {
                    request_id: "a".to_owned(),
                }))?;
                call.half_close();
            }
            if let Some(event::Event::Finished(finished)) = event.event {
                let reason = FinishReason::try_from(finished.reason)?.as_str_name();
                println!("cancel: {}", reason.trim_start_matches("FINISH_REASON_"));
            }
        }
    }
    Ok(())
}

/// A client that is slow allows only as many tokens as it can take.
async fn credit(client: Client) -> Result<(), Failure> {
    let request = Start {
        credit: Some(5),
        ..start("a", 12)
    };
    let mut call = Call::open(client, Command::Start(request)).await?;
    let (mut before, mut total) = (0, 0);
    while let Some(events) = call.next().await? {
        for event in events {
            total += tokens(&event).map_or(0, |tokens| tokens.num_tokens);
            if total == 5 && before == 0 {
                before = total;
                call.send(Command::Credit(Credit {
                    request_id: "a".to_owned(),
                    tokens: 50,
                }))?;
                call.half_close();
            }
        }
    }
    println!("credit: {before}, then {total}");
    Ok(())
}

/// A request outlives its stream, and another stream goes on with it.
async fn resume(client: Client) -> Result<(), Failure> {
    let (mut whole, mut got) = (String::new(), String::new());
    let mut call = Call::open(client.clone(), Command::Start(start("a", 60))).await?;
    call.half_close();
    while let Some(events) = call.next().await? {
        whole.extend(events.iter().filter_map(tokens).map(|tokens| &*tokens.text));
    }

    let request = Start {
        resume_window: Some(prost_types::Duration {
            seconds: 60,
            nanos: 0,
        }),
        ..start("a", 60)
    };
    let (mut handle, mut number) = (String::new(), 0);
    let mut lost = Call::open(client.clone(), Command::Start(request)).await?;
    while got.is_empty() {
        for event in lost.next().await?.ok_or("the stream has ended")? {
            number = event.number;
            got.extend(tokens(&event).map(|tokens| &*tokens.text));
            if let Some(event::Event::Accepted(accepted)) = event.event {
                handle = accepted.handle;
            }
        }
    }
    drop(lost);

    let command = Resume {
        handle,
        after_number: number,
        request_id: "b".to_owned(),
    };
    let mut call = Call::open(client, Command::Resume(command)).await?;
    call.half_close();
    while let Some(events) = call.next().await? {
        got.extend(events.iter().filter_map(tokens).map(|tokens| &*tokens.text));
    }
    if whole == got {
        println!("resume: the same text");
    } else {
        println!("resume: {got:?} instead of {whole:?}");
    }
    Ok(())
}

/// The deadline of a call ends it, whatever its requests wait for.
async fn deadline(mut client: Client) -> Result<(), Failure> {
    let request = Start {
        credit: Some(0),
        ..start("a", 10)
    };
    let (commands, outgoing) = mpsc::unbounded_channel();
    commands.send(GenerateRequest {
        command: Some(Command::Start(request)),
    })?;
    let mut call = Request::new(UnboundedReceiverStream::new(outgoing));
    call.set_timeout(Duration::from_millis(500));
    let mut responses = client.generate(call).await?.into_inner();
    let status = loop {
        match responses.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Err("the stream has ended".into()),
            Err(status) => break status,
        }
    };
    println!("deadline: {}", name(&status));
    Ok(())
}

async fn without_token(channel: Channel) {
    let mut server = ServerServiceClient::new(channel);
    let request = GetServerInfoRequest::default();
    if let Err(status) = server.get_server_info(request).await {
        println!("token: {}", name(&status));
    }
}

/// More calls at once than the tenant may make in a second: tonic has no service config, so that
/// those that are refused are sent again by hand.
async fn retry(client: Client) -> Result<(), Failure> {
    let mut calls = Vec::new();
    for _ in 0..30 {
        calls.push(tokio::spawn(answered(client.clone())));
    }
    let mut num = 0;
    for call in calls {
        num += u32::from(call.await?);
    }
    println!("retry: {num} of 30");
    Ok(())
}

async fn answered(mut client: Client) -> bool {
    for attempt in 0..5 {
        let request = GenerateOneRequest {
            start: Some(start("", 1)),
        };
        // An error here has no headers: the call was refused, and has begun nothing.
        match client.generate_one(request).await {
            Ok(response) => {
                let mut responses = response.into_inner();
                while let Ok(Some(_)) = responses.message().await {}
                return responses.trailers().await.is_ok();
            }
            Err(status) if matches!(status.code(), Code::Unavailable | Code::ResourceExhausted) => {
                tokio::time::sleep(Duration::from_millis(500 << attempt)).await;
            }
            Err(_) => return false,
        }
    }
    false
}

/// The name of a status code as the other languages write it.
fn name(status: &Status) -> String {
    match status.code() {
        // tonic ends a call at its deadline by itself, as CANCELLED.
        Code::DeadlineExceeded | Code::Cancelled => "DEADLINE_EXCEEDED".to_owned(),
        Code::Unauthenticated => "UNAUTHENTICATED".to_owned(),
        other => format!("{other:?}"),
    }
}
