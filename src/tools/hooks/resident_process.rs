//! Drives the process of one resident hook: the only reader and writer of its pipes. `resident` documents the
//! protocol.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use epitome_platform::pipe;
use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::functions::BoxError;
use super::output::{ProcessExit, RawOutcome};
use super::process::{self, ProcessSpec, STDERR_BYTES_MAX};
use super::read::shown;
use super::resident::{
    CALLS_A_RUN_MAX, CALLS_OPEN_MAX, HookServices, LINE_BYTES_MAX, RESTART_WAITS, RESTARTS_MAX,
    STRAY_LINES_MAX,
};
use super::streams::{KeptPart, OutputStream, READ_BYTES};
use epitome_platform::group::{CommandExit, RunningCommand};
use epitome_platform::piped::Piped;

/// A request from a caller that waits for the answer.
pub(super) struct ResidentRequest {
    pub payload: Value,
    pub limit: Duration,
    pub answer: oneshot::Sender<RawOutcome>,
}

impl ResidentRequest {
    fn fail(self, why: String) {
        // The caller may no longer be waiting.
        let _ = self.answer.send(RawOutcome::Failed(why));
    }
}

/// Drives the processes of one hook, one at a time.
pub(super) struct Driver {
    name: String,
    spec: ProcessSpec,
    services: Arc<dyn HookServices>,
    incoming: mpsc::Receiver<ResidentRequest>,
    /// Requests taken from the channel but not sent to the process yet.
    waiting: VecDeque<ResidentRequest>,
    starts: usize,
    /// The id of the next request; never reused, not even for another process.
    next: u64,
}

impl Driver {
    pub fn new(
        name: String,
        spec: ProcessSpec,
        services: Arc<dyn HookServices>,
        incoming: mpsc::Receiver<ResidentRequest>,
    ) -> Driver {
        Driver { name, spec, services, incoming, waiting: VecDeque::new(), starts: 0, next: 1 }
    }

    /// Runs until the session ends.
    pub async fn drive(mut self) {
        loop {
            if self.waiting.is_empty() {
                let Some(request) = self.incoming.recv().await else { return };
                self.waiting.push_back(request);
            }
            self.waiting.retain(|request| !request.answer.is_closed());
            if self.waiting.is_empty() {
                continue;
            }
            if self.starts > RESTARTS_MAX {
                let why = format!("its process was started again {RESTARTS_MAX} times, and no more");
                self.waiting.drain(..).for_each(|request| request.fail(why.clone()));
                continue;
            }
            if let Some(wait) = self.starts.checked_sub(1).and_then(|restart| RESTART_WAITS.get(restart)) {
                tokio::time::sleep(*wait).await;
            }
            self.starts += 1;
            match process::start(&self.spec).await {
                Ok(started) => {
                    if ResidentProcess::new(started).serve(&mut self).await.is_break() {
                        return;
                    }
                }
                Err(error) => {
                    let why = error.to_string();
                    self.waiting.drain(..).for_each(|request| request.fail(why.clone()));
                }
            }
        }
    }
}

/// A call of the hook in progress: resolves to its id and result.
type CallInProgress = BoxFuture<'static, (Value, Result<Value, BoxError>)>;

/// A request that was sent and not answered yet.
struct SentRequest {
    answer: oneshot::Sender<RawOutcome>,
    deadline: Instant,
    limit: Duration,
}

struct ResidentProcess {
    running: RunningCommand,
    stdin: pipe::Sender,
    /// Data not written to stdin yet.
    unwritten: Vec<u8>,
    stdout: OutputStream,
    stderr: OutputStream,
    open: BTreeMap<u64, SentRequest>,
    calls: FuturesUnordered<CallInProgress>,
    /// Calls made since the last time that no request was open.
    calls_made: u32,
    invalid_lines: InvalidLines,
}

#[derive(Default)]
struct InvalidLines {
    /// Number of invalid lines of the process.
    all: u32,
    /// Descriptions of those that were not reported with a run yet.
    unreported: Vec<String>,
}

impl InvalidLines {
    fn add(&mut self, words: String) {
        self.all += 1;
        self.unreported.push(words);
    }

    /// Adds the unreported lines to a run as a remark.
    fn add_to(&mut self, ran: RawOutcome) -> RawOutcome {
        let remark = match self.unreported.as_slice() {
            [] => return ran,
            [line] => format!("it wrote a line that {line}"),
            [first, ..] => {
                let count = self.unreported.len();
                format!("it wrote {count} lines that mean nothing; the first one {first}")
            }
        };
        self.unreported.clear();
        RawOutcome::Remarked(Box::new(ran), vec![remark])
    }
}

impl ResidentProcess {
    fn new(started: Piped) -> ResidentProcess {
        ResidentProcess {
            running: started.running,
            stdin: started.stdin,
            unwritten: Vec::new(),
            stdout: OutputStream::new(started.stdout, KeptPart::Beginning(LINE_BYTES_MAX + READ_BYTES)),
            stderr: OutputStream::new(started.stderr, KeptPart::End(STDERR_BYTES_MAX)),
            open: BTreeMap::new(),
            calls: FuturesUnordered::new(),
            calls_made: 0,
            invalid_lines: InvalidLines::default(),
        }
    }

    /// Sends requests until the process ends or has to be terminated, or the session has ended (`Break`).
    async fn serve(mut self, driver: &mut Driver) -> ControlFlow<()> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            // While the hook waits for one of its calls, the queued request may be what that call waits for.
            while (self.open.is_empty() || !self.calls.is_empty())
                && let Some(request) = driver.waiting.pop_front()
            {
                self.send(driver.next, request);
                driver.next += 1;
            }
            let deadline = self.open.values().map(|open| open.deadline).min();
            let limited = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now));
            // In this order; otherwise a process that writes continuously would never be terminated.
            tokio::select! {
                biased;
                ending = &mut self.running.ending => {
                    self.stdout.take_leftover(&mut buffer);
                    self.stderr.take_leftover(&mut buffer);
                    // The remaining output may contain an answer; exceeded limits no longer matter.
                    let _ = self.take_lines(driver);
                    self.fail_open(&self.describe_end(ending.unwrap_or(CommandExit::Unknown)));
                    return ControlFlow::Continue(());
                }
                () = limited, if deadline.is_some() => {
                    self.time_out();
                    self.fail_open("its process was ended because it did not answer another request in time");
                    return ControlFlow::Continue(());
                }
                request = driver.incoming.recv(), if driver.waiting.is_empty() => match request {
                    Some(request) => driver.waiting.push_back(request),
                    None => return ControlFlow::Break(()),
                },
                ready = self.stdout.ready() => {
                    self.stdout.take(ready, &mut buffer);
                    if let Err(why) = self.take_lines(driver) {
                        tracing::warn!(hook = driver.name, "a resident hook is ended: {why}");
                        self.fail_open(why);
                        return ControlFlow::Continue(());
                    }
                }
                ready = self.stderr.ready() => self.stderr.take(ready, &mut buffer),
                Some((id, result)) = self.calls.next(), if !self.calls.is_empty() => self.answer(&id, result),
                written = self.stdin.write(&self.unwritten), if !self.unwritten.is_empty() => match written {
                    Ok(written) => drop(self.unwritten.drain(..written)),
                    // It no longer reads stdin. Its end or the time limit decides how to continue.
                    Err(_) => self.unwritten.clear(),
                },
            }
        }
    }

    fn send(&mut self, id: u64, request: ResidentRequest) {
        let ResidentRequest { payload, limit, answer } = request;
        self.write(&json!({"id": id, "payload": payload}));
        self.open.insert(id, SentRequest { answer, deadline: Instant::now() + limit, limit });
    }

    fn answer(&mut self, id: &Value, result: Result<Value, BoxError>) {
        self.write(&match result {
            Ok(result) => json!({"id": id, "result": result}),
            Err(error) => json!({"id": id, "error": {"message": error.to_string()}}),
        });
    }

    fn write(&mut self, line: &Value) {
        self.unwritten.extend_from_slice(line.to_string().as_bytes());
        self.unwritten.push(b'\n');
    }

    /// Handles the complete lines read so far. The error is why the process has to be terminated.
    fn take_lines(&mut self, driver: &Driver) -> Result<(), &'static str> {
        let mut text = std::mem::take(&mut self.stdout.kept);
        let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.stdout.kept = text.split_off(end);
        let too_long = self.stdout.cut || self.stdout.kept.len() > LINE_BYTES_MAX;
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            if let Err(why) = self.take_line(line, driver) {
                let words = format!("{why}: {}", shown(&String::from_utf8_lossy(line)));
                tracing::warn!(hook = driver.name, "a resident hook wrote a line that {words}");
                self.invalid_lines.add(words);
            }
        }
        match self.invalid_lines.all {
            _ if too_long => Err("it wrote a line that is longer than 1 MiB"),
            0..=STRAY_LINES_MAX => Ok(()),
            _ => Err("it wrote too many lines that mean nothing"),
        }
    }

    /// Handles a line. The error is what is wrong with it.
    fn take_line(&mut self, line: &[u8], driver: &Driver) -> Result<(), &'static str> {
        let mut line: Map<String, Value> =
            serde_json::from_slice(line).map_err(|_| "is not a JSON object")?;
        let id = line.remove("id").filter(|id| !id.is_null()).ok_or("has no id")?;
        if let Some(method) = line.remove("method") {
            let Value::String(method) = method else { return Err("has a method that is not a string") };
            let params = line.remove("params").unwrap_or(Value::Null);
            return self.call(id, method, params, driver);
        }
        // Accept a number in quotes, which is easier to print in shell scripts.
        let number = id.as_u64().or_else(|| id.as_str()?.parse().ok());
        let open = number.and_then(|id| self.open.remove(&id)).ok_or("answers nothing that is open")?;
        let ran = match (line.remove("error").filter(|error| !error.is_null()), line.remove("result")) {
            (Some(error), _) => {
                let message = error.get("message").unwrap_or(&error);
                RawOutcome::Failed(message.as_str().map_or_else(|| message.to_string(), str::to_owned))
            }
            (None, Some(Value::Object(result))) => RawOutcome::Object(result),
            (None, Some(Value::Null)) => RawOutcome::Object(Map::new()),
            (None, Some(_)) => RawOutcome::Failed("its result is not a JSON object".to_owned()),
            (None, None) => RawOutcome::Failed("its answer has neither a result nor an error".to_owned()),
        };
        // The caller may no longer be waiting.
        let _ = open.answer.send(self.invalid_lines.add_to(ran));
        if self.open.is_empty() {
            self.calls = FuturesUnordered::new();
            self.calls_made = 0;
        }
        Ok(())
    }

    /// Starts a call. The error is why it is refused. The hook gets the refusal as well; it still counts as an invalid
    /// line, because otherwise the refusals for a hook that makes calls and never reads would accumulate without limit.
    fn call(
        &mut self,
        id: Value,
        method: String,
        params: Value,
        driver: &Driver,
    ) -> Result<(), &'static str> {
        let refusal = if self.open.is_empty() {
            Some((
                "calls are answered only while a request is open".to_owned(),
                "calls while no request is open",
            ))
        } else if self.calls.len() >= CALLS_OPEN_MAX {
            Some((format!("more than {CALLS_OPEN_MAX} calls at once"), "makes too many calls at once"))
        } else if self.calls_made >= CALLS_A_RUN_MAX {
            let message = format!("more than {CALLS_A_RUN_MAX} calls for one request");
            Some((message, "makes too many calls for one request"))
        } else {
            None
        };
        if let Some((message, why)) = refusal {
            self.answer(&id, Err(message.into()));
            return Err(why);
        }
        self.calls_made += 1;
        let (services, hook) = (driver.services.clone(), driver.name.clone());
        self.calls.push(Box::pin(async move {
            let called = AssertUnwindSafe(async { services.call(&hook, &method, params).await });
            let result = called.catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(hook, method, "a call of a resident hook panicked");
                Err("the call hit a bug in Epitome".into())
            });
            (id, result)
        }));
        Ok(())
    }

    /// Answers the requests that have timed out.
    fn time_out(&mut self) {
        let now = Instant::now();
        for (_, open) in self.open.extract_if(.., |_, open| open.deadline <= now) {
            let ran = RawOutcome::Ended {
                exit: ProcessExit::TimedOut(open.limit),
                stdout: Vec::new(),
                stdout_cut: false,
                stderr: self.stderr.text(),
            };
            let _ = open.answer.send(self.invalid_lines.add_to(ran));
        }
    }

    fn fail_open(&mut self, why: &str) {
        for open in std::mem::take(&mut self.open).into_values() {
            let _ = open.answer.send(self.invalid_lines.add_to(RawOutcome::Failed(why.to_owned())));
        }
    }

    /// Describes how the process ended, with the last line of stderr.
    fn describe_end(&self, ending: CommandExit) -> String {
        let how = match ending {
            CommandExit::Code(code) => format!("with exit code {code}"),
            CommandExit::Signal(signal) => format!("by signal {signal}"),
            CommandExit::Unknown => "in an unknown way".to_owned(),
        };
        let stderr = self.stderr.text();
        match stderr.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(last) => format!("its process ended {how} before it answered: {}", shown(last)),
            None => format!("its process ended {how} before it answered"),
        }
    }
}
