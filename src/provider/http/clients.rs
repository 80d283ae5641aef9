//! The HTTP clients, each with a pool of connections: one for each provider and network. Made at their
//! first use, and dropped when they were unused the longest.

use std::fs;
use std::io;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Client, ClientBuilder, NoProxy, Proxy};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::network::{Certificates, Network};

/// Clients that are kept: several editors with several providers each. Dropping one ends no call, only the
/// connections that wait in its pool.
pub const CLIENTS_MAX: usize = 16;

/// How long an unused connection is kept for the next round.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How often a quiet connection is tried, so that one that died in a sleep or behind a router is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// How long the answer to that may take.
const KEEP_ALIVE_ANSWER_MAX: Duration = Duration::from_secs(20);

/// How often TCP asks before a connection counts as dead.
const KEEP_ALIVE_PROBES: u32 = 3;

/// The most that one file of certificates may hold, in bytes; the largest bundles have half a megabyte.
const CERTIFICATE_FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The most files that are read of a folder of certificates; a Debian has some 300.
const CERTIFICATE_FILES_MAX: usize = 2_000;

/// Names the program to the providers.
const USER_AGENT: &str = concat!("epitome/", env!("CARGO_PKG_VERSION"));

/// Which client a call goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The provider's name; empty for what is no model call.
    pub provider: String,
    pub network: Network,
    /// Past the network's proxies.
    pub direct: bool,
    pub connect: Duration,
}

/// The clients in use, the longest unused first.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<Vec<(Key, Made)>>);

/// A client, and what is wrong with the certificates that its environment names.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub client: Client,
    /// Each is a clause without a stop.
    pub faults: Arc<[String]>,
}

impl Clients {
    /// The client for a key. An error is a clause that names the variable to look at.
    pub(super) fn get(&self, key: Key) -> Result<Made, String> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Has the next call make its client anew: a person who was told that a certificate is not trusted
    /// corrects the file and tries again.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(existing, _)| existing != key);
    }
}

/// A client for one host alone, whose name stands for these addresses whatever its servers say of it later. Kept
/// nowhere.
pub(super) fn pinned(key: &Key, host: &str, addresses: &[SocketAddr]) -> Result<Client, String> {
    let (builder, _) = builder(key)?;
    let builder = if addresses.is_empty() { builder } else { builder.resolve_to_addrs(host, addresses) };
    builder.build().map_err(|_| "the HTTP client could not be made".to_owned())
}

fn build(key: &Key) -> Result<Made, String> {
    let (builder, faults) = builder(key)?;
    let client = builder.build().map_err(|_| "the HTTP client could not be made".to_owned())?;
    Ok(Made { client, faults: faults.into() })
}

/// Redirects are not followed: the keys are in headers, and only some of those are known to the client as
/// secrets.
fn builder(key: &Key) -> Result<(ClientBuilder, Vec<String>), String> {
    let (roots, faults) = trusted(key.network.certificates());
    // The platform's roots are not asked for: they cost 3 ms at every start of a client.
    let mut tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
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
        // What this process's own environment says of proxies is somebody else's.
        .no_proxy();
    let builder = if key.direct { builder } else { with_proxies(builder, &key.network)? };
    Ok((builder, faults))
}

fn with_proxies(mut builder: ClientBuilder, network: &Network) -> Result<ClientBuilder, String> {
    let kinds: [fn(&str) -> reqwest::Result<Proxy>; 2] = [|url| Proxy::http(url), |url| Proxy::https(url)];
    for (proxy, make) in network.proxies().into_iter().zip(kinds) {
        let Some(proxy) = proxy else { continue };
        let variable = proxy.variable;
        let made = make(proxy.url()?).map_err(|_| {
            format!("{variable} is not the address of a proxy; it should look like http://host:port")
        })?;
        builder = builder.proxy(made.no_proxy(NoProxy::from_string(network.direct())));
    }
    Ok(builder)
}

/// Mozilla's certificates and those that an environment names, with what can't be read of these. A fault
/// does not end a call that works without: the variable may be for another program. It is said where a
/// certificate is not trusted.
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

/// The certificates of a file, or of the files of a folder.
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
        // Other things lie in such folders too.
        found.extend(CertificateDer::pem_slice_iter(&text).filter_map(Result::ok));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(provider: usize) -> Key {
        let provider = format!("p{provider}");
        Key { provider, network: Network::default(), direct: false, connect: Duration::from_secs(1) }
    }

    #[test]
    fn the_client_that_was_unused_the_longest_is_dropped() {
        let clients = Clients::default();
        for provider in 0..CLIENTS_MAX {
            clients.get(key(provider)).expect("it can be made");
        }
        clients.get(key(0)).expect("it is there");
        clients.get(key(CLIENTS_MAX)).expect("it can be made");
        let kept = clients.0.lock().expect("nothing panicked");
        let names: Vec<&str> = kept.iter().map(|(key, _)| key.provider.as_str()).collect();
        assert_eq!(names.len(), CLIENTS_MAX);
        assert!(names.contains(&"p0") && !names.contains(&"p1"), "{names:?}");
    }

    #[test]
    fn certificates_that_cannot_be_read_are_told_and_the_others_are_still_trusted() {
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
