//! Network settings from an editor's environment: proxies, and certificates to trust. Pure data; this module opens no
//! files or connections.
//!
//! Each attached editor has its own environment, which may differ from this process's: an editor in a corporate network
//! and one connected over SSH need different proxies.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;

use super::address::{host_of, is_loopback, port_of};
use super::endpoint::EnvironmentPairs;

/// Variables that name a file or a directory with certificates. Programs on a corporate machine read its certificate
/// authority from different variables, and setting any of them means that this authority is trusted. All of them apply.
/// Each only adds certificates, so a provider that is reachable without them remains reachable.
const CERTIFICATES: [&str; 4] =
    ["SSL_CERT_FILE", CERTIFICATE_DIRECTORIES, "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"];

/// This variable may name several directories, separated as in `PATH`.
const CERTIFICATE_DIRECTORIES: &str = "SSL_CERT_DIR";

/// Supported proxy schemes.
const PROXY_SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];

/// Network settings. Cheap to clone; equal settings share connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Network(Arc<Routes>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Routes {
    http: Option<Proxy>,
    https: Option<Proxy>,
    /// `NO_PROXY` in the client's format: entries without ports, separated by commas.
    direct: String,
    /// Entries of `NO_PROXY` with a port.
    direct_ports: Vec<(String, u16)>,
    certificates: Vec<Certificates>,
}

/// A proxy, and the variable that names it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Proxy {
    pub variable: &'static str,
    url: String,
}

/// A location of certificates, and the variable that names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Certificates {
    pub variable: &'static str,
    /// A file in PEM format, or a directory of such files.
    pub path: PathBuf,
}

impl Network {
    /// Reads `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, preferring lower case as curl and wget do, and
    /// the variables that name certificates. An empty variable counts as unset.
    pub fn read(env: &EnvironmentPairs) -> Network {
        let proxy = |names| either(env, names).map(|(variable, url)| Proxy { variable, url });
        let all = proxy(["all_proxy", "ALL_PROXY"]);
        let mut routes = Routes {
            http: proxy(["http_proxy", "HTTP_PROXY"]).or_else(|| all.clone()),
            https: proxy(["https_proxy", "HTTPS_PROXY"]).or(all),
            certificates: certificates(env),
            ..Routes::default()
        };
        let (_, listed) = either(env, ["no_proxy", "NO_PROXY"]).unwrap_or_default();
        let mut direct: Vec<&str> = Vec::new();
        for entry in listed.split([',', ' ', '\t']).filter(|entry| !entry.is_empty()) {
            // `*.example.com` is a common spelling of `.example.com`.
            let entry = entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry);
            match with_port(entry) {
                Some((host, port)) => routes.direct_ports.push((host.to_ascii_lowercase(), port)),
                None => direct.push(entry),
            }
        }
        routes.direct = direct.join(",");
        Network(Arc::new(routes))
    }

    /// Whether a URL always bypasses proxies: a loopback URL, which a proxy can't reach, or a host and port in
    /// `NO_PROXY`. (The client matches entries without a port.)
    pub(super) fn is_direct(&self, url: &str) -> bool {
        let host = host_of(url).to_ascii_lowercase();
        let is_named = |(name, port): &(String, u16)| {
            let tail = name.strip_prefix('.').unwrap_or(name);
            let is_host = host.strip_suffix(tail).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            is_host && port_of(url) == *port
        };
        is_loopback(&host) || self.0.direct_ports.iter().any(is_named)
    }

    /// The proxies for `http:` and for `https:` URLs.
    pub(super) fn proxies(&self) -> [Option<&Proxy>; 2] {
        [self.0.http.as_ref(), self.0.https.as_ref()]
    }

    /// The variable that names the proxy for a URL. Entries of `NO_PROXY` without a port are ignored.
    pub(super) fn variable_of(&self, url: &str) -> Option<&'static str> {
        let proxy = if url.starts_with("https:") { &self.0.https } else { &self.0.http };
        proxy.as_ref().filter(|_| !self.is_direct(url)).map(|proxy| proxy.variable)
    }

    /// Hosts that bypass proxies, separated by commas.
    pub(super) fn direct(&self) -> &str {
        &self.0.direct
    }

    pub(super) fn certificates(&self) -> &[Certificates] {
        &self.0.certificates
    }

    /// The proxies' credentials, in every form in which a proxy might echo them.
    pub(super) fn secrets(&self) -> Vec<String> {
        self.proxies().into_iter().flatten().flat_map(|proxy| secrets_of(&proxy.url)).collect()
    }
}

impl Proxy {
    /// The URL including user and password, only for the client. The error doesn't quote the URL.
    pub(super) fn url(&self) -> Result<&str, String> {
        match self.url.split_once("://") {
            Some((scheme, _)) if !PROXY_SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()) => {
                Err(format!(
                    "{} names a proxy of a kind that is not known; it may begin with {}",
                    self.variable,
                    PROXY_SCHEMES.map(|scheme| format!("{scheme}://")).join(", ")
                ))
            }
            Some(_) | None => Ok(&self.url),
        }
    }
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.variable)
    }
}

/// The secrets in a URL: user, password and query values, in the forms in which servers see them.
pub(super) fn secrets_of(url: &str) -> Vec<String> {
    let mut found = Vec::new();
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // A password may contain a character that ends the authority. The URL is then malformed, but the password is
    // still secret.
    for whole in [authority, rest] {
        let Some((user_info, _)) = whole.rsplit_once('@') else { continue };
        let plain = decoded(user_info);
        let (user, password) = plain.split_once(':').unwrap_or((&plain, ""));
        found.push(BASE64_STANDARD.encode(format!("{user}:{password}")));
        for part in [user_info, user_info.split_once(':').map_or("", |(_, password)| password)] {
            found.extend([part.to_owned(), decoded(part)]);
        }
        // The part of such a password that remains visible when the URL is displayed.
        found.extend(user_info.split(['/', '?', '#', ':']).map(str::to_owned));
        // Some gateways take a key as the user name, without a password.
        found.push(user.to_owned());
    }
    let query = url.split_once('?').map_or("", |(_, query)| query);
    for pair in query.split(['&', '#']) {
        let value = pair.split_once('=').map_or(pair, |(_, value)| value);
        // If a path was appended after the query, it isn't part of a value.
        for value in [value, value.split('/').next().unwrap_or_default()] {
            found.extend([value.to_owned(), decoded(value)]);
        }
    }
    found
}

/// Decodes percent-encoding (`%41`).
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// The first of two variables that is set, with its name.
fn either(env: &EnvironmentPairs, names: [&'static str; 2]) -> Option<(&'static str, String)> {
    names.into_iter().find_map(|name| {
        let value = raw(env, name)?.to_string_lossy().trim().to_owned();
        (!value.is_empty()).then_some((name, value))
    })
}

fn certificates(env: &EnvironmentPairs) -> Vec<Certificates> {
    let mut found: Vec<Certificates> = Vec::new();
    for variable in CERTIFICATES {
        let Some(value) = raw(env, variable).filter(|value| !value.is_empty()) else { continue };
        let paths: Vec<PathBuf> = match variable {
            CERTIFICATE_DIRECTORIES => std::env::split_paths(value).collect(),
            _ => vec![value.into()],
        };
        for path in paths {
            // Several variables often name the same bundle.
            if !path.as_os_str().is_empty() && found.iter().all(|known| known.path != path) {
                found.push(Certificates { variable, path });
            }
        }
    }
    found
}

fn raw<'a>(env: &'a EnvironmentPairs, name: &str) -> Option<&'a OsString> {
    env.iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

/// Splits `host:port`; an IPv6 address without brackets has no port.
fn with_port(entry: &str) -> Option<(&str, u16)> {
    let (host, port) = entry.rsplit_once(':')?;
    let is_host = !host.contains(':') || host.ends_with(']');
    Some((host, port.parse().ok()?)).filter(|_| is_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(env: &[(&str, &str)]) -> Network {
        let env: Vec<(OsString, OsString)> =
            env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Network::read(&env)
    }

    #[test]
    fn proxy_depends_on_the_scheme() {
        let (plain, tls) = ("http://models.example.com/v1", "https://models.example.com/v1");
        for (env, for_plain, for_tls) in [
            (vec![], None, None),
            (vec![("HTTPS_PROXY", "http://p:1")], None, Some("HTTPS_PROXY")),
            (vec![("HTTP_PROXY", "p:1")], Some("HTTP_PROXY"), None),
            (vec![("ALL_PROXY", "socks5://p")], Some("ALL_PROXY"), Some("ALL_PROXY")),
            (
                vec![("all_proxy", "http://a"), ("https_proxy", "http://b")],
                Some("all_proxy"),
                Some("https_proxy"),
            ),
            // Same precedence as curl, wget and Node's fetch.
            (vec![("HTTPS_PROXY", "http://a"), ("https_proxy", "http://b")], None, Some("https_proxy")),
            (vec![("HTTPS_PROXY", "http://a"), ("https_proxy", "")], None, Some("HTTPS_PROXY")),
            (vec![("HTTPS_PROXY", " ")], None, None),
        ] {
            let network = network(&env);
            assert_eq!(
                (network.variable_of(plain), network.variable_of(tls)),
                (for_plain, for_tls),
                "{env:?}"
            );
        }
    }

    #[test]
    fn loopback_and_no_proxy_ports_bypass_proxies() {
        let network =
            network(&[("ALL_PROXY", "http://p"), ("NO_PROXY", "box:8080, .corp.example:443 other")]);
        for (url, expected) in [
            ("http://localhost:1/v1", true),
            ("http://LOCALHOST:1/v1", true),
            ("https://127.0.0.1/v1", true),
            ("http://[::1]:8080/v1", true),
            ("http://box:8080/v1", true),
            ("http://box/v1", false),
            ("http://inbox:8080/v1", false),
            ("https://ai.corp.example/v1", true),
            ("https://ai.corp.example:8443/v1", false),
        ] {
            assert_eq!(network.is_direct(url), expected, "{url}");
        }
        assert_eq!(network.direct(), "other");
    }

    #[test]
    fn no_proxy_hosts_are_in_the_clients_format() {
        for (written, expected) in [
            ("a.example, .b.example", "a.example,.b.example"),
            ("*.c.example 10.0.0.0/8", ".c.example,10.0.0.0/8"),
            ("*", "*"),
            ("fe80::1", "fe80::1"),
        ] {
            assert_eq!(network(&[("NO_PROXY", written)]).direct(), expected);
        }
    }

    #[test]
    fn all_certificate_variables_are_read() {
        let network = network(&[
            ("SSL_CERT_DIR", "/a:/b"),
            ("REQUESTS_CA_BUNDLE", "/ca.pem"),
            ("NODE_EXTRA_CA_CERTS", "/ca.pem"),
            ("SSL_CERT_FILE", ""),
        ]);
        let found: Vec<(&str, &str)> = network
            .certificates()
            .iter()
            .map(|named| (named.variable, named.path.to_str().expect("it was given as text")))
            .collect();
        let expected = [("SSL_CERT_DIR", "/a"), ("SSL_CERT_DIR", "/b"), ("NODE_EXTRA_CA_CERTS", "/ca.pem")];
        assert_eq!(found, expected);
    }

    #[test]
    fn equal_environments_give_equal_networks() {
        let first = [("HTTPS_PROXY", "http://p"), ("HOME", "/home/a")];
        let second = [("HOME", "/home/b"), ("HTTPS_PROXY", "http://p")];
        assert_eq!(network(&first), network(&second));
        assert_ne!(network(&first), network(&[("HTTPS_PROXY", "http://q")]));
    }

    #[test]
    fn passwords_are_found_in_every_form_and_never_shown() {
        let network = network(&[("HTTPS_PROXY", "http://joe:hunter%2F22@proxy:3128")]);
        let secrets = network.secrets();
        for form in ["hunter/22", "hunter%2F22", "am9lOmh1bnRlci8yMg=="] {
            assert!(secrets.iter().any(|secret| secret == form), "{form}: {secrets:?}");
        }
        assert!(!format!("{network:?}").contains("hunter"), "{network:?}");
    }

    #[test]
    fn unknown_proxy_scheme_is_reported_without_the_url() {
        let network = network(&[("HTTPS_PROXY", "ftp://joe:hunter22@proxy")]);
        let [_, proxy] = network.proxies();
        let why = proxy.expect("it is named").url().expect_err("it is not used");
        assert!(why.starts_with("HTTPS_PROXY names") && !why.contains("hunter22"), "{why}");
    }
}
