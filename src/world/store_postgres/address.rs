//! The address of a database as it is configured, and the password, which is never part of it.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::DuplexStream;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Error, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connections::{SqlFailure, TRY_FOR};
use super::tls::{TlsChoice, TlsChoiceError, tls_error};
use epitome_files::atomic_file::{PrivateFileError, read_private};

/// The port of PostgreSQL, which messages don't name.
const USUAL_PORT: u16 = 5432;

/// How long one attempt to connect takes, unless the address says otherwise.
const CONNECT_FOR: Duration = Duration::from_secs(3);

/// Multiple of that time for the network, the encryption and the login together.
const STEPS_OF_CONNECTING: u32 = 2;

/// A connection is given up if the server's machine is silent for about this time, unless the address says otherwise. How
/// long the server works on a statement does not matter.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// The pause between two probes of a silent connection, and their number.
const PROBES: (Duration, u32) = (Duration::from_secs(1), 3);

/// The library's default if the address does not say when probes begin.
const KEEPALIVES_IDLE_DEFAULT: Duration = Duration::from_secs(2 * 60 * 60);

/// The address of the logs. Messages show it without the password.
pub struct StoreAddress {
    /// One for each host, in the order of the address.
    hosts: Vec<Config>,
    password: PasswordSource,
    /// The host of the last connection.
    last: AtomicUsize,
    tls: MakeRustlsConnect,
    place: String,
    simulated: Option<Dial>,
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

/// Why the address of a store can't be used, without any part of it.
#[derive(Debug, thiserror::Error)]
pub enum StoreAddressError {
    #[error("the store must be an address like postgres://user@host/database")]
    Scheme,
    #[error("the address of the store is not one of PostgreSQL")]
    Invalid,
    #[error("the address of the store contains a password; put it into PGPASSWORD or ~/.pgpass")]
    Password,
    #[error("the address of the store: {0}")]
    Tls(#[from] TlsChoiceError),
}

impl StoreAddress {
    /// Reads `postgres://user@host/database`. The password is `PGPASSWORD`, or that of the file `PGPASSFILE` or
    /// `~/.pgpass`.
    pub fn parse(
        url: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<StoreAddress, StoreAddressError> {
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(StoreAddressError::Scheme);
        }
        let (url, choice) = TlsChoice::taken_from(url, &variable);
        let (mode, tls) = choice.connector()?;
        let hosts: Vec<Config> =
            for_each_host(&url).iter().map(|url| config(url, mode)).collect::<Result<_, _>>()?;
        let names: Vec<String> = hosts.iter().map(place_of).collect();
        let database = hosts.first().map(database_of).unwrap_or_default();
        let place = format!("the database {database} at {}", names.join(", "));
        let password = PasswordSource::from(&variable);
        Ok(StoreAddress { hosts, password, last: AtomicUsize::new(0), tls, place, simulated: None })
    }

    /// Connects to the servers of a simulation instead.
    pub fn simulated(self, dial: Dial) -> StoreAddress {
        StoreAddress { simulated: Some(dial), ..self }
    }

    /// Connects to the first host that can be used, beginning with the one of the last connection. A host that accepts
    /// connections and then is silent does not keep us from the next one.
    /// The last part of the result is the place of that host.
    pub(crate) async fn connect(&self) -> Result<(Client, StoreConnection, usize), SqlFailure> {
        let last = self.last.load(Ordering::Relaxed);
        let mut failure = SqlFailure::Silent;
        for at in (0..self.hosts.len()).map(|next| (last + next) % self.hosts.len()) {
            let config = &self.hosts[at];
            match timeout(connect_limit(config, self.hosts.len()), self.connect_to(at)).await {
                Ok(Ok((client, connection))) => {
                    self.last.store(at, Ordering::Relaxed);
                    return Ok((client, connection, at));
                }
                Ok(Err(error)) => failure = SqlFailure::Sql(error),
                Err(_) => failure = SqlFailure::Silent,
            }
        }
        Err(failure)
    }

    async fn connect_to(&self, host: usize) -> Result<(Client, StoreConnection), Error> {
        if let Some(dial) = &self.simulated {
            let (client, connection) = self.hosts[host].connect_raw(dial(host).await, NoTls).await?;
            return Ok((client, Box::pin(connection)));
        }
        let config = self.with_password(host);
        let connected = match config.connect(self.tls.clone()).await {
            // `prefer` does without TLS where the server can't agree on it, or admits only connections without it.
            Err(error) if config.get_ssl_mode() == SslMode::Prefer && is_refused(&error) => {
                config.clone().ssl_mode(SslMode::Disable).connect(self.tls.clone()).await
            }
            connected => connected,
        };
        let (client, connection) = connected?;
        Ok((client, Box::pin(connection)))
    }

    /// The configuration of a host with the password that applies now.
    fn with_password(&self, host: usize) -> Config {
        let mut config = self.hosts[host].clone();
        if let Some(password) = self.password.now(&config) {
            config.password(password);
        }
        config
    }

    /// A statement was not answered in time: the host may be a primary that was replaced and waits for its standby. The next
    /// host is tried first.
    pub(crate) fn leave(&self, host: usize) {
        let next = (host + 1) % self.hosts.len();
        // Fails if another host is used already.
        let _ = self.last.compare_exchange(host, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn tls(&self) -> &MakeRustlsConnect {
        &self.tls
    }

    /// Names it in messages.
    pub fn place(&self) -> &str {
        &self.place
    }
}

/// How long one of these hosts may take. Several of them together leave a call the time to come to the last one, whatever
/// the address says.
fn connect_limit(config: &Config, hosts: usize) -> Duration {
    let asked = config.get_connect_timeout().copied().unwrap_or(CONNECT_FOR) * STEPS_OF_CONNECTING;
    match hosts {
        1 => asked,
        _ => asked.min(TRY_FOR / u32::try_from(hosts + 1).unwrap_or(u32::MAX)),
    }
}

/// The address of each host that an address with several of them names.
fn for_each_host(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://") else { return vec![url.to_owned()] };
    let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let hosts_at = authority.rfind('@').map_or(0, |at| at + 1);
    let (user, hosts) = authority.split_at(hosts_at);
    hosts.split(',').map(|host| format!("{scheme}://{user}{host}{rest}")).collect()
}

/// The configuration of one host.
fn config(url: &str, mode: SslMode) -> Result<Config, StoreAddressError> {
    let mut config: Config = url.parse().map_err(|_| StoreAddressError::Invalid)?;
    if config.get_password().is_some() {
        return Err(StoreAddressError::Password);
    }
    // There is no TLS over a Unix socket, whatever is asked for.
    let is_local = !config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(_)));
    config.ssl_mode(if is_local { SslMode::Disable } else { mode });
    if config.get_application_name().is_none() {
        config.application_name("epitome");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_FOR);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENT_FOR);
    }
    if config.get_keepalives_idle() == KEEPALIVES_IDLE_DEFAULT {
        let (every, probes) = PROBES;
        let idle = SILENT_FOR - every * probes;
        config.keepalives_idle(idle).keepalives_interval(every).keepalives_retries(probes);
    }
    Ok(config)
}

/// The source of the password. It is read for each connection, because it may be changed while a daemon runs.
struct PasswordSource {
    variable: Option<String>,
    file: Option<PathBuf>,
}

impl PasswordSource {
    fn from(variable: &impl Fn(&str) -> Option<String>) -> PasswordSource {
        let file = variable("PGPASSFILE").or_else(|| variable("HOME").map(|home| format!("{home}/.pgpass")));
        PasswordSource { variable: variable("PGPASSWORD"), file: file.map(PathBuf::from) }
    }

    fn now(&self, config: &Config) -> Option<String> {
        if self.variable.is_some() {
            return self.variable.clone();
        }
        let (user, port) = (config.get_user()?, config.get_ports().first().copied().unwrap_or(5432));
        let (port, database) = (port.to_string(), database_of(config));
        let file = self.file.as_ref().filter(|file| file.exists())?;
        let ignored = |why: &PrivateFileError| tracing::warn!(path = %file.display(), %why, "the passwords are ignored");
        let text = read_private(file).inspect_err(ignored).ok()?;
        let mut hosts = config.get_hosts().iter().map(host_name);
        hosts.find_map(|host| password_in(&text, [&host, &port, &database, user]))
    }
}

/// The only host of a configuration, with its port if that is not the usual one.
fn place_of(config: &Config) -> String {
    let name = config.get_hosts().first().map(host_name).unwrap_or_default();
    match config.get_ports().first() {
        Some(port) if *port != USUAL_PORT => format!("{name}:{port}"),
        _ => name,
    }
}

fn host_name(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    }
}

fn database_of(config: &Config) -> String {
    config.get_dbname().or(config.get_user()).unwrap_or_default().to_owned()
}

/// Moves the bytes of a client.
pub(crate) type StoreConnection = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Connects to a server of a simulation, by its place in the address. One that can't be reached never answers, or closes
/// the connection.
pub type Dial = Box<dyn Fn(usize) -> Pin<Box<dyn Future<Output = DuplexStream> + Send>> + Send + Sync>;

fn is_refused(error: &Error) -> bool {
    let is_of_tls = |cause| tls_error(cause).is_some();
    error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
        || std::error::Error::source(error).is_some_and(is_of_tls)
}

/// The password of the first line `host:port:database:user:password` that fits.
fn password_in(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = vec![String::new()];
        let mut characters = line.chars();
        while let Some(character) = characters.next() {
            match character {
                '\\' => fields.last_mut()?.extend(characters.next()),
                ':' if fields.len() < 5 => fields.push(String::new()),
                character => fields.last_mut()?.push(character),
            }
        }
        let [host, port, database, user, password] = fields.try_into().ok()?;
        let fits =
            [host, port, database, user].iter().zip(wanted).all(|(is, wanted)| is == "*" || is == wanted);
        fits.then_some(password)
    })
}

#[cfg(test)]
mod tests {
    use epitome_platform::os::PermissionsExt;

    use super::*;

    #[test]
    fn the_password_comes_from_the_environment_or_a_private_file() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".pgpass");
        std::fs::write(&file, "# ours\nother:*:*:*:no\ndb:5432:work:me:a\\:b\n").unwrap();
        let address = |password: Option<&str>| {
            let (password, home) = (password.map(str::to_owned), home.path().display().to_string());
            let variable = move |name: &str| match name {
                "PGPASSWORD" => password.clone(),
                "HOME" => Some(home.clone()),
                _ => None,
            };
            StoreAddress::parse("postgres://me@db/work", variable).unwrap()
        };
        assert_eq!(format!("{:?}", address(None)), "the database work at db");
        let several = StoreAddress::parse("postgres://me@db:5433,other:5432/work", |_| None).unwrap();
        assert_eq!(several.place(), "the database work at db:5433, other");
        let now = |address: &StoreAddress| {
            let config = address.with_password(0);
            config.get_password().map(|password| String::from_utf8_lossy(password).into_owned())
        };
        let given = |password: Option<&str>| now(&address(password));
        let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert_eq!(given(None), None);
        mode(0o600);
        assert_eq!(given(None).as_deref(), Some("a:b"));
        assert_eq!(given(Some("c")).as_deref(), Some("c"));
        // Regression: a daemon that ran while the password was changed could not connect any more.
        let running = address(None);
        std::fs::write(&file, "db:5432:work:me:new\n").unwrap();
        assert_eq!(now(&running).as_deref(), Some("new"));
        let refused = StoreAddress::parse("postgres://me:secret@db/work", |_| None).unwrap_err().to_string();
        assert!(refused.contains("PGPASSWORD") && !refused.contains("secret"), "{refused}");
    }

    /// Regression: the primary's machine was lost, and `connect_timeout=10` in the address is as long as a call may
    /// take. Each call spent its time on the lost machine, and none ever reached the standby.
    #[test]
    fn a_call_has_the_time_to_come_to_the_last_host() {
        for (hosts, more) in [("a,b", ""), ("a,b", "?connect_timeout=10"), ("a,b,c,d", "")] {
            let address =
                StoreAddress::parse(&format!("postgres://me@{hosts}/work{more}"), |_| None).unwrap();
            let limits = address.hosts.iter().map(|config| connect_limit(config, address.hosts.len()));
            assert!(limits.sum::<Duration>() < TRY_FOR, "{hosts}{more}");
        }
    }

    #[test]
    fn each_host_has_an_address() {
        for (url, expected) in [
            ("postgres://db/work", &["postgres://db/work"][..]),
            ("postgres:///work?host=/run", &["postgres:///work?host=/run"]),
            (
                "postgres://me@a:1,[::1]:2/work?x=1,2",
                &["postgres://me@a:1/work?x=1,2", "postgres://me@[::1]:2/work?x=1,2"],
            ),
            ("postgres://a,b", &["postgres://a", "postgres://b"]),
        ] {
            assert_eq!(for_each_host(url), expected, "{url}");
        }
    }
}
