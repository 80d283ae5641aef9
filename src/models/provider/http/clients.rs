//! HTTP clients, each with a connection pool: one per provider and network. Created on first use; the least
//! recently used is dropped.

use std::fs;
use std::io;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use reqwest::{Client, ClientBuilder, NoProxy, Proxy};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::network::{Certificates, Network, ProxyError};

/// Maximum number of cached clients: enough for several editors with several providers each. Dropping a client cancels
/// no calls; it only closes the idle connections of its pool.
pub const CLIENTS_MAX: usize = 16;

/// How long an idle connection is kept for the next request. A prompt is read and written in that time, and a command
/// that the model asked for runs. Most services close connections later than that.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// How much further the time of day has gone than the monotonic clock, which does not run while the machine is
/// suspended, for connections to count as dead. Smaller differences are corrections of the time of day.
const SUSPENDED_MIN: Duration = Duration::from_secs(10);

/// Interval of keep-alive probes, which detect connections that died during a suspend or in a router.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Timeout for the answer to an HTTP/2 ping.
const KEEP_ALIVE_ANSWER_MAX: Duration = Duration::from_secs(20);

/// Unanswered TCP probes after which a connection counts as dead.
const KEEP_ALIVE_PROBES: u32 = 3;

/// Maximum bytes read of a certificate file; the largest bundles have half a megabyte.
const CERTIFICATE_FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Maximum number of files read from a certificate directory; Debian has about 300.
const CERTIFICATE_FILES_MAX: usize = 2_000;

/// Identifies the program to providers.
const USER_AGENT: &str = concat!("epitome/", env!("CARGO_PKG_VERSION"));

/// Why there is no client for a URL. Its text is a clause, which names the variable to check, if one is at fault.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("{variable} is not the address of a proxy; it should look like http://host:port")]
    ProxyAddress { variable: &'static str, source: reqwest::Error },
    #[error("the HTTP client could not be made")]
    NotMade(#[source] reqwest::Error),
}

/// Selects the client for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientKey {
    /// The provider's name; empty for requests that aren't model calls.
    pub provider: String,
    pub network: Network,
    /// Whether to bypass the network's proxies.
    pub direct: bool,
    pub connect: Duration,
}

impl ClientKey {
    /// The key for a request to a URL that isn't a model call.
    pub(crate) fn without_provider(network: &Network, url: &str, connect: Duration) -> ClientKey {
        let (provider, direct) = (String::new(), network.is_direct(url));
        ClientKey { provider, network: network.clone(), direct, connect }
    }
}

/// The cached clients.
#[derive(Debug, Default)]
pub(crate) struct ClientCache(Mutex<Cached>);

#[derive(Debug, Default)]
struct Cached {
    /// The least recently used first.
    clients: Vec<(ClientKey, CachedClient)>,
    /// When a client was last asked for.
    clocks: Option<Clocks>,
}

/// A client, and the problems with the certificates that the environment specifies.
#[derive(Clone, Debug)]
pub(crate) struct CachedClient {
    pub client: Client,
    /// Each is a clause without a full stop.
    pub faults: Arc<[String]>,
    /// When it last sent a request that may have left a connection.
    used: Arc<Mutex<Option<Instant>>>,
}

impl CachedClient {
    /// Records that a request is sent now. Returns whether an earlier one may have left a connection.
    pub(crate) fn use_now(&self) -> bool {
        let before = self.used.lock().replace(Instant::now());
        before.is_some_and(|at| at.elapsed() < IDLE_MAX)
    }
}

/// The same moment according to two clocks.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    monotonic: Instant,
    day: SystemTime,
}

impl Clocks {
    fn now() -> Clocks {
        Clocks { monotonic: Instant::now(), day: SystemTime::now() }
    }

    /// Whether the machine was suspended between the two moments.
    fn has_slept_until(self, later: Clocks) -> bool {
        let ran = later.monotonic.saturating_duration_since(self.monotonic);
        later.day.duration_since(self.day).is_ok_and(|passed| passed > ran + SUSPENDED_MIN)
    }
}

impl ClientCache {
    /// Returns the client for a key. Connections from before a suspend are not used: routers and services have forgotten them, and a request would wait for an answer.
    pub(crate) fn get(&self, key: ClientKey) -> Result<CachedClient, ClientError> {
        let mut cached = self.0.lock();
        let now = Clocks::now();
        if cached.clocks.replace(now).is_some_and(|before| before.has_slept_until(now)) {
            cached.clients.clear();
        }
        let kept = &mut cached.clients;
        let made = match kept.iter().position(|(existing, _)| *existing == key) {
            Some(at) => kept.remove(at).1,
            None => {
                if kept.len() >= CLIENTS_MAX {
                    kept.remove(0);
                }
                build(&key)?
            }
        };
        kept.push((key, made.clone()));
        Ok(made)
    }

    /// Makes the next call create a new client, so that a user can correct an untrusted certificate file and retry.
    pub(crate) fn forget(&self, key: &ClientKey) {
        self.0.lock().clients.retain(|(existing, _)| existing != key);
    }
}

/// A client for a single host, pinned to these addresses (if any) regardless of later DNS answers. Not cached.
pub(crate) fn pinned(key: &ClientKey, host: &str, addresses: &[SocketAddr]) -> Result<Client, ClientError> {
    let (builder, _) = builder(key)?;
    let builder = if addresses.is_empty() { builder } else { builder.resolve_to_addrs(host, addresses) };
    builder.build().map_err(ClientError::NotMade)
}

fn build(key: &ClientKey) -> Result<CachedClient, ClientError> {
    let (builder, faults) = builder(key)?;
    let client = builder.build().map_err(ClientError::NotMade)?;
    Ok(CachedClient { client, faults: faults.into(), used: Arc::default() })
}

/// Redirects are not followed, because keys are sent in headers and the client treats only some of those as secret.
fn builder(key: &ClientKey) -> Result<(ClientBuilder, Vec<String>), ClientError> {
    let (roots, faults) = trusted(key.network.certificates());
    // The platform's root certificates are not loaded, which would take 3 ms per client.
    let mut tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let protocols: [&[u8]; 2] = [b"h2", b"http/1.1"];
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let builder = Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(key.connect)
        .pool_idle_timeout(IDLE_MAX)
        .tcp_keepalive(KEEP_ALIVE)
        .tcp_keepalive_interval(KEEP_ALIVE)
        .tcp_keepalive_retries(KEEP_ALIVE_PROBES)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_keep_alive_timeout(KEEP_ALIVE_ANSWER_MAX)
        .http2_adaptive_window(true)
        .redirect(reqwest::redirect::Policy::none())
        .tls_backend_preconfigured(tls)
        // This process's proxy variables must not apply: each editor has its own environment.
        .no_proxy();
    let builder = if key.direct { builder } else { with_proxies(builder, &key.network)? };
    Ok((builder, faults))
}

fn with_proxies(mut builder: ClientBuilder, network: &Network) -> Result<ClientBuilder, ClientError> {
    let kinds: [fn(&str) -> reqwest::Result<Proxy>; 2] = [|url| Proxy::http(url), |url| Proxy::https(url)];
    for (proxy, make) in network.proxies().into_iter().zip(kinds) {
        let Some(proxy) = proxy else { continue };
        let variable = proxy.variable;
        let made = make(proxy.url()?)
            .map_err(|error| ClientError::ProxyAddress { variable, source: error.without_url() })?;
        builder = builder.proxy(made.no_proxy(NoProxy::from_string(network.direct())));
    }
    Ok(builder)
}

/// Returns Mozilla's certificates and those that the environment specifies, and the problems with the latter. A problem
/// doesn't fail calls, because the variable may be meant for other programs. It is reported if a server's certificate
/// turns out not to be trusted.
fn trusted(named: &[Certificates]) -> (RootCertStore, Vec<String>) {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
    let mut faults = Vec::new();
    for Certificates { variable, path } in named {
        let added = read_all(path).map_err(|error| error.to_string()).and_then(|found| {
            let (added, _) = roots.add_parsable_certificates(found);
            if added == 0 { Err("there is no certificate in PEM form in it".to_owned()) } else { Ok(()) }
        });
        if let Err(why) = added {
            let fault = format!("{variable} names {}, which can't be used: {why}", path.display());
            tracing::warn!("{fault}");
            faults.push(fault);
        }
    }
    (roots, faults)
}

/// Returns the certificates in a file, or in the files of a directory.
fn read_all(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let mut files: Vec<PathBuf> = vec![path.to_owned()];
    if path.is_dir() {
        let listed = fs::read_dir(path)?.take(CERTIFICATE_FILES_MAX);
        files = listed.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
        files.retain(|file| file.is_file());
    }
    let mut found = Vec::new();
    for file in files {
        let mut text = Vec::new();
        fs::File::open(&file)?.take(CERTIFICATE_FILE_BYTES_MAX).read_to_end(&mut text)?;
        // A certificate directory also contains other files.
        found.extend(CertificateDer::pem_slice_iter(&text).filter_map(Result::ok));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(provider: usize) -> ClientKey {
        let provider = format!("p{provider}");
        let connect = Duration::from_secs(1);
        ClientKey { provider, network: Network::default(), direct: false, connect }
    }

    #[test]
    fn least_recently_used_client_is_dropped() {
        let clients = ClientCache::default();
        for provider in 0..CLIENTS_MAX {
            clients.get(key(provider)).expect("it can be made");
        }
        clients.get(key(0)).expect("it is there");
        clients.get(key(CLIENTS_MAX)).expect("it can be made");
        let kept = clients.0.lock();
        let names: Vec<&str> = kept.clients.iter().map(|(key, _)| key.provider.as_str()).collect();
        assert_eq!(names.len(), CLIENTS_MAX);
        assert!(names.contains(&"p0") && !names.contains(&"p1"), "{names:?}");
    }

    #[test]
    fn connections_of_before_a_suspend_are_not_used() {
        let before = Clocks::now();
        let later = |ran: u64, passed: u64| Clocks {
            monotonic: before.monotonic + Duration::from_secs(ran),
            day: before.day + Duration::from_secs(passed),
        };
        assert!(before.has_slept_until(later(5, 605)));
        assert!(!before.has_slept_until(later(605, 605)));
        // The time of day was corrected.
        assert!(!before.has_slept_until(later(5, 12)));
        assert!(!later(5, 5).has_slept_until(later(10, 0)));
    }

    #[test]
    fn unreadable_certificates_are_reported_and_the_others_trusted() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        fs::write(folder.path().join("README"), "no certificate").expect("it can be written");
        let named = |path: &Path| Certificates { variable: "SSL_CERT_FILE", path: path.to_owned() };
        let missing = folder.path().join("missing.pem");
        let (roots, faults) = trusted(&[named(&missing), named(folder.path())]);
        assert_eq!(roots.len(), webpki_root_certs::TLS_SERVER_ROOT_CERTS.len());
        assert!(
            faults[0].starts_with("SSL_CERT_FILE names") && faults[0].contains("missing.pem"),
            "{faults:?}"
        );
        assert!(faults[1].contains("no certificate in PEM form"), "{faults:?}");
    }
}
