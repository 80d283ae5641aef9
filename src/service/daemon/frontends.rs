//! Connected front ends; each has a reader and a writer thread.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Daemon;
use super::attachments::{Attached, AttachmentKind, fresh_client};
use super::build::Build;
use super::handshake::{self, HELLO_BYTES_MAX, HelloAnswer, RETURN_TIME_MAX};
use super::listener::PendingPermit;
use super::messages::{Farewell, MessageWriter};
use super::token::Token;
use epitome_acp::answers::{LoginNeed, LoginState};
use epitome_acp::connection::Connection;
use epitome_acp::server::{ConnectionConfig, ProviderRoute, UserLogin};
use epitome_acp::writer::Positions;
use epitome_config::{Logins, Settings, StoredLogin};
use epitome_files::paths::Paths;
use epitome_platform::local;
use epitome_provider::endpoint::{self, ConfiguredModel, CredentialOrigin, provider_title};
use epitome_provider::http::Http;
use epitome_provider::sign_in;
use epitome_session::registry::Overrides;
use epitome_session::{ClientId, ProviderSettings, SessionError, provider_error};
use epitome_thread::ModelName;

/// Hosted providers that clients may route elsewhere without any settings. Others are those of the settings.
const HOSTED_ROUTES: [&str; 2] = ["anthropic", "openai"];

/// Time limit for a front end to send its complete hello, which it does immediately.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);

/// Time limit for finding out whether a front end has died.
const LOOK_TIME_MAX: Duration = Duration::from_millis(100);

/// Read buffer for the hello, in bytes. Smaller than the connection's own buffer, so that later reads bypass
/// it.
const READ_BYTES: usize = 8 * 1024;

/// The logins of a client with this environment and these overrides.
pub struct ClientLogin {
    pub paths: Paths,
    /// The overrides of the command line that the client launched, and the routes of its providers.
    overrides: Mutex<Arc<Overrides>>,
    pub environment: Arc<Vec<(OsString, OsString)>>,
}

impl ClientLogin {
    pub fn new(
        paths: Paths,
        overrides: Overrides,
        environment: Arc<Vec<(OsString, OsString)>>,
    ) -> ClientLogin {
        ClientLogin { paths, overrides: Mutex::new(Arc::new(overrides)), environment }
    }

    fn settings(&self) -> Settings {
        let value = |name: &str| {
            self.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        self.overrides().over(Settings::load(&self.paths, None, value).0)
    }

    /// The model that is configured; `None` if a local server is looked for.
    fn chosen(&self, settings: &Settings) -> Option<ModelName> {
        match endpoint::choose(settings, &self.environment) {
            ConfiguredModel::Named(model) => Some(model),
            ConfiguredModel::SearchLocal(_) => None,
        }
    }

    /// Ends a removed login at its provider, too. A failure is only logged: on this machine the login is removed.
    fn revoke(&self, provider: &str, login: &StoredLogin) {
        let Ok(service) = endpoint::service(provider, &self.settings(), &self.environment) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if let Some(Err(why)) = runtime.block_on(sign_in::revoke(&Http::new(), &service, login)) {
            tracing::warn!(provider, %why, "the access could not be ended at the provider");
        }
    }
}

impl UserLogin for ClientLogin {
    fn check(&self) -> Result<(), SessionError> {
        endpoint::configured(&self.settings(), &self.environment).map_err(|error| provider_error(&error))
    }

    fn takes_audio(&self) -> bool {
        let settings = self.settings();
        self.chosen(&settings).is_some_and(|model| {
            endpoint::resolve(&model, &settings, &self.environment)
                .is_ok_and(|endpoint| endpoint.abilities.audio)
        })
    }

    fn state(&self) -> LoginState {
        let settings = self.settings();
        let chosen = self.chosen(&settings);
        let found = chosen.as_ref().map(|model| endpoint::resolve(model, &settings, &self.environment));
        let need = match (found, endpoint::configured(&settings, &self.environment)) {
            (_, Err(_)) => LoginNeed::Missing,
            // A local server.
            (None, Ok(())) => LoginNeed::None,
            (Some(Ok(endpoint)), Ok(()))
                if matches!(endpoint.credential_origin(), CredentialOrigin::Absent) =>
            {
                LoginNeed::None
            }
            (Some(_), Ok(())) => LoginNeed::Satisfied,
        };
        let in_use = chosen.as_ref().and_then(|model| model.split()).map(|(provider, _)| provider);
        let stored = Logins::below(&self.paths.data).providers();
        let account =
            |provider: String| (provider_title(&provider).to_owned(), in_use == Some(provider.as_str()));
        LoginState { need, accounts: stored.into_iter().map(account).collect() }
    }

    fn routes(&self) -> Vec<ProviderRoute> {
        let settings = self.settings();
        let configured = settings.providers.keys().map(String::as_str);
        let ids: BTreeSet<&str> = HOSTED_ROUTES.into_iter().chain(configured).collect();
        let route = |id: &str| {
            let endpoint = endpoint::service(id, &settings, &self.environment).ok()?;
            Some(ProviderRoute { id: id.to_owned(), wire: endpoint.wire, base_url: endpoint.shown_url() })
        };
        ids.into_iter().filter_map(route).collect()
    }

    fn route(&self, provider: String, to: ProviderSettings) {
        let mut overrides = self.overrides.lock();
        Arc::make_mut(&mut overrides).routes.insert(provider, to);
    }

    fn overrides(&self) -> Arc<Overrides> {
        self.overrides.lock().clone()
    }

    fn log_out(&self) -> io::Result<bool> {
        let logins = Logins::below(&self.paths.data);
        let mut is_any = false;
        for provider in logins.providers() {
            let removed = logins
                .remove(&provider)
                .map_err(|error| io::Error::new(error.kind(), format!("{provider}: {error}")))?;
            is_any |= removed.is_some();
            if let Some(login) = removed.and_then(|removed| removed.login) {
                self.revoke(&provider, &login);
            }
        }
        Ok(is_any)
    }
}

/// Whether clients that ask for version 2 of the protocol get it.
pub fn offers_v2(paths: &Paths) -> bool {
    Settings::load(paths, None, |_: &str| None).0.acp_v2
}

/// The connected front ends.
pub struct Frontends {
    daemon: Arc<Daemon>,
    token: Arc<Token>,
    open: watch::Sender<OpenFrontends>,
    newer: watch::Sender<Option<Build>>,
    runtime: tokio::runtime::Handle,
}

#[derive(Default)]
struct OpenFrontends {
    frontends: HashMap<ClientId, Frontend>,
    /// The daemon is shutting down: no new front ends are accepted.
    closing: bool,
}

struct Frontend {
    stream: local::Stream,
    farewell: Arc<OnceLock<Farewell>>,
}

impl Frontends {
    /// Must be called on the runtime that the sessions run on.
    pub fn new(daemon: Arc<Daemon>, token: Arc<Token>) -> Arc<Frontends> {
        let runtime = tokio::runtime::Handle::current();
        let (open, newer) = (watch::Sender::default(), watch::Sender::default());
        Arc::new(Frontends { daemon, token, open, newer, runtime })
    }

    /// Serves a connection on its own threads, or answers its hello with the reason why it is refused. `permit` is
    /// dropped once the front end has introduced itself.
    pub fn open(
        self: &Arc<Self>,
        stream: local::Stream,
        permit: Option<PendingPermit>,
        refused: Option<String>,
    ) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let frontends = self.clone();
        let serve = move || {
            if let Err(error) = frontends.serve(stream, permit, refused) {
                tracing::info!(%error, "a front end was not attached");
            }
        };
        std::thread::Builder::new().name("front-reader".to_owned()).spawn(serve).map(drop)
    }

    /// The build of a front end that is newer than this daemon, once such a front end has attached.
    pub fn newer(&self) -> watch::Receiver<Option<Build>> {
        self.newer.subscribe()
    }

    /// Ends all attachments after their turns are cancelled and recorded, each with `farewell` as its last
    /// frame. No new ones are accepted from now on.
    pub fn close(&self, farewell: Farewell) {
        self.open.send_modify(|open| {
            open.closing = true;
            for frontend in open.frontends.values() {
                // A farewell that was set earlier takes precedence.
                drop(frontend.farewell.set(farewell.clone()));
                // Everything sent before is still read. Shutting down a closed stream fails, which is harmless.
                drop(frontend.stream.shutdown(Shutdown::Read));
            }
        });
    }

    /// Waits until no front end is connected.
    pub async fn closed(&self) {
        // The sender is owned by `self`, so waiting can't fail.
        drop(self.open.subscribe().wait_for(|open| open.frontends.is_empty()).await);
    }

    /// Serves a front end from its hello until it disconnects.
    fn serve(
        self: &Arc<Self>,
        stream: local::Stream,
        permit: Option<PendingPermit>,
        refused: Option<String>,
    ) -> io::Result<()> {
        let until = Some(Instant::now() + HELLO_TIME_MAX);
        let timed = TimedStream { stream: stream.try_clone()?, until };
        let mut reader = BufReader::with_capacity(READ_BYTES, timed);
        let mut hello = reader.by_ref().take(HELLO_BYTES_MAX as u64);
        let mut line = Vec::new();
        let length = match &refused {
            // It is not needed.
            Some(_) => hello.skip_until(b'\n')?,
            None => hello.read_until(b'\n', &mut line)?,
        };
        if length == 0 {
            // A probe that only checked whether the daemon accepts connections.
            return Ok(());
        }
        let daemon = &self.daemon;
        let answer = |refused| HelloAnswer {
            build: Build::current().clone(),
            pid: std::process::id(),
            refused,
            restricts: true,
        };
        let read = match refused {
            Some(why) => Err(why),
            None => handshake::read(&line, &daemon.paths, &self.token).map_err(|error| error.to_string()),
        };
        let hello = match read {
            Ok(hello) => hello,
            Err(why) => {
                tracing::warn!(why, "a front end is refused");
                return (&stream).write_all(&answer(Some(why)).to_line());
            }
        };
        drop((line, permit));
        reader.get_mut().until = None;
        stream.set_read_timeout(None)?;
        let client = fresh_client();
        let farewell = Arc::default();
        // Before the answer: a front end that is answered is served or gets a farewell. One without an answer
        // retries.
        let Some(_registered) = self.enter(client, &stream, &farewell)? else { return Ok(()) };
        (&stream).write_all(&answer(None).to_line())?;
        tracing::info!(
            client = client.0,
            pid = hello.pid,
            version = hello.build.version,
            sources = hello.build.sources,
            "a front end has attached"
        );
        let attached = Attached {
            client,
            kind: AttachmentKind::Editor,
            version: Some(hello.build.version.clone()),
            pid: Some(hello.pid),
            cwd: Some(hello.cwd()),
            since: SystemTime::now(),
            grant: hello.grant.clone(),
        };
        if hello.build.is_newer(Build::current()) {
            self.newer.send_replace(Some(hello.build.clone()));
        }
        if let Some(address) = &hello.served_at {
            daemon.store.advertise(address);
        }
        let probe = hello.grant.is_some().then(|| stream.try_clone()).transpose()?;
        let environment = hello.environment.shared();
        let login = ClientLogin::new(daemon.paths.clone(), hello.overrides, environment.clone());
        let parts = ConnectionConfig {
            sessions: daemon.sessions.clone(),
            runtime: self.runtime.clone(),
            client,
            grant: hello.grant.map(Arc::new),
            environment,
            login: Arc::new(login),
            ids_above: hello.ids_above,
            positions: Positions::Included,
            offers_v2: {
                let paths = daemon.paths.clone();
                Box::new(move || offers_v2(&paths))
            },
        };
        let connection = Connection::open(MessageWriter::new(stream, farewell), parts, None);
        let _present = daemon.attachments.enter(attached, Box::new(connection.client_now()));
        // A panic here must not leave the client's turns running.
        if catch_unwind(AssertUnwindSafe(|| connection.read(reader))).is_err() {
            tracing::error!(client = client.0, "the reader of a front end panicked");
        }
        if let Some(stream) = probe
            && local::has_hung_up(&stream, LOOK_TIME_MAX)
        {
            self.wait_for_return();
        }
        connection.closer().close();
        tracing::info!(client = client.0, "a front end has disconnected");
        Ok(())
    }

    /// Keeps the turns of clients of other machines running while they connect to another server, in the place of one
    /// that died.
    fn wait_for_return(&self) {
        let mut stop = self.daemon.stop.subscribe();
        self.runtime.block_on(async {
            drop(tokio::time::timeout(RETURN_TIME_MAX, stop.wait_for(|stop| *stop)).await);
        });
    }

    /// Registers a front end; `None` if the daemon is shutting down.
    fn enter(
        self: &Arc<Self>,
        client: ClientId,
        stream: &local::Stream,
        farewell: &Arc<OnceLock<Farewell>>,
    ) -> io::Result<Option<Registered>> {
        let frontend = Frontend { stream: stream.try_clone()?, farewell: farewell.clone() };
        let is_entered = self.open.send_if_modified(|open| {
            if !open.closing {
                open.frontends.insert(client, frontend);
            }
            !open.closing
        });
        Ok(is_entered.then(|| Registered(self.clone(), client)))
    }
}

/// Reads until a deadline, if there is one. The socket's own timeout limits each read, so that a client that sends a
/// byte from time to time would never reach it.
struct TimedStream {
    stream: local::Stream,
    until: Option<Instant>,
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
            self.stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        }
        self.stream.read(buffer)
    }
}

/// A registered front end; dropping it removes the entry.
struct Registered(Arc<Frontends>, ClientId);

impl Drop for Registered {
    fn drop(&mut self) {
        let Registered(frontends, client) = self;
        frontends.open.send_modify(|open| drop(open.frontends.remove(client)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a process sent a byte of its hello every other second, and kept its thread for as long as it liked.
    #[test]
    fn a_hello_has_one_deadline() {
        let (mut client, stream) = local::pair().expect("a pair");
        client.write_all(b"{\n").expect("it is open");
        let mut reader = TimedStream { stream, until: Some(Instant::now() + HELLO_TIME_MAX) };
        assert_eq!(reader.read(&mut [0]).expect("in time"), 1);
        reader.until = Some(Instant::now());
        assert_eq!(reader.read(&mut [0]).expect_err("too late").kind(), io::ErrorKind::TimedOut);
        reader.until = None;
        assert_eq!(reader.read(&mut [0]).expect("it has been admitted"), 1);
    }
}
