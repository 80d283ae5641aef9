//! How an editor's environment says that the outside is reached: proxies, and certificates to trust. Pure
//! data; nothing here opens a file or a connection.
//!
//! Each attached editor has an environment of its own, which need not be this process's: an editor in a
//! company's network and one that came over SSH want different ways out.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::address::{host_of, is_loopback, port_of};
use super::endpoint::Environment;

/// Variables that name certificates, and whether each names a folder. Every program of a company's machine
/// is told of its certificate authority by another of them, and whoever set one of them means that
/// authority to be trusted. So all count, and all only add: a provider that is reached without one is
/// reached with it too.
const CERTIFICATES: [(&str, Form); 4] = [
    ("SSL_CERT_FILE", Form::File),
    ("SSL_CERT_DIR", Form::Folders),
    ("NODE_EXTRA_CA_CERTS", Form::File),
    ("REQUESTS_CA_BUNDLE", Form::FileOrFolder),
];

/// Schemes of proxies that are spoken.
const PROXY_SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];

#[derive(Clone, Copy)]
enum Form {
    File,
    /// Several may be named, as in `PATH`.
    Folders,
    FileOrFolder,
}

/// The way to the outside. Cheap to clone; equal ones share their connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Network(Arc<Ways>);

#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct Ways {
    http: Option<Proxy>,
    https: Option<Proxy>,
    /// As the client takes it: entries without ports, separated by commas.
    direct: String,
    /// Entries of `NO_PROXY` that are for one port alone.
    direct_ports: Vec<(String, u16)>,
    certificates: Vec<Certificates>,
}

/// A proxy, and the variable that names it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Proxy {
    pub variable: &'static str,
    url: String,
}

/// Where certificates are, and the variable that says so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Certificates {
    pub variable: &'static str,
    /// A file in PEM form, or a folder of such.
    pub path: PathBuf,
}

impl Network {
    /// Reads `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in lower case first, as curl and
    /// wget do; and the variables that name certificates. An empty variable counts as none.
    pub fn read(env: &Environment) -> Network {
        let all = proxy(env, ["all_proxy", "ALL_PROXY"]);
        let mut ways = Ways {
            http: proxy(env, ["http_proxy", "HTTP_PROXY"]).or_else(|| all.clone()),
            https: proxy(env, ["https_proxy", "HTTPS_PROXY"]).or(all),
            certificates: certificates(env),
            ..Ways::default()
        };
        let (_, listed) = either(env, ["no_proxy", "NO_PROXY"]).unwrap_or_default();
        let mut direct: Vec<&str> = Vec::new();
        for entry in listed.split([',', ' ', '\t']).filter(|entry| !entry.is_empty()) {
            // `*.example.com` is what many write for `.example.com`.
            let entry = entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry);
            match with_port(entry) {
                Some((host, port)) => ways.direct_ports.push((host.to_ascii_lowercase(), port)),
                None => direct.push(entry),
            }
        }
        ways.direct = direct.join(",");
        Network(Arc::new(ways))
    }

    /// Whether a URL is never asked through a proxy: one of this machine, which a proxy would not find,
    /// and a host with a port that `NO_PROXY` names. (Hosts without a port are matched by the client.)
    pub(super) fn is_direct(&self, url: &str) -> bool {
        let host = host_of(url).to_ascii_lowercase();
        let is_named = |(name, port): &(String, u16)| {
            let tail = name.strip_prefix('.').unwrap_or(name);
            let is_host = host.strip_suffix(tail).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            is_host && port_of(url) == *port
        };
        is_loopback(&host) || self.0.direct_ports.iter().any(is_named)
    }

    /// The proxies for `http:` and for `https:` addresses.
    pub(super) fn proxies(&self) -> [Option<&Proxy>; 2] {
        [self.0.http.as_ref(), self.0.https.as_ref()]
    }

    /// The variable that names the proxy for a URL. `NO_PROXY` is not looked at but for its ports.
    pub(super) fn variable_of(&self, url: &str) -> Option<&'static str> {
        let proxy = if url.starts_with("https:") { &self.0.https } else { &self.0.http };
        proxy.as_ref().filter(|_| !self.is_direct(url)).map(|proxy| proxy.variable)
    }

    /// Hosts that are reached without a proxy, separated by commas.
    pub(super) fn direct(&self) -> &str {
        &self.0.direct
    }

    pub(super) fn certificates(&self) -> &[Certificates] {
        &self.0.certificates
    }

    /// Everything that opens a proxy, in every form that could come back from one.
    pub(super) fn secrets(&self) -> Vec<String> {
        self.proxies().into_iter().flatten().flat_map(|proxy| secrets_of(&proxy.url)).collect()
    }
}

impl Proxy {
    /// The address with its user and password, for the client alone. An error says what is wrong with it,
    /// without a word of it.
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

/// Without the address, which may hold a password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.variable)
    }
}

/// What is secret in a URL: user and password, and the values of its query; in the forms in which servers
/// see them.
pub(super) fn secrets_of(url: &str) -> Vec<String> {
    let mut found = Vec::new();
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // A password may hold a character that ends an authority; then the address is not well formed, but
    // the password is one all the same.
    for whole in [authority, rest] {
        let Some((user_info, _)) = whole.rsplit_once('@') else { continue };
        let plain = decoded(user_info);
        let (user, password) = plain.split_once(':').unwrap_or((&plain, ""));
        found.push(BASE64_STANDARD.encode(format!("{user}:{password}")));
        for part in [user_info, user_info.split_once(':').map_or("", |(_, password)| password)] {
            found.extend([part.to_owned(), decoded(part)]);
        }
        // Some gateways take a key as the user, with no password.
        found.push(user.to_owned());
    }
    let query = url.split_once('?').map_or("", |(_, query)| query);
    for pair in query.split(['&', '#']) {
        let value = pair.split_once('=').map_or(pair, |(_, value)| value);
        // A path that was put behind a query is no part of a value.
        for value in [value, value.split('/').next().unwrap_or_default()] {
            found.extend([value.to_owned(), decoded(value)]);
        }
    }
    found
}

/// Text with its `%41` as what they stand for.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn proxy(env: &Environment, names: [&'static str; 2]) -> Option<Proxy> {
    let (variable, url) = either(env, names)?;
    Some(Proxy { variable, url })
}

/// The first of two variables that is set, with its name.
fn either(env: &Environment, names: [&'static str; 2]) -> Option<(&'static str, String)> {
    names.into_iter().find_map(|name| {
        let value = raw(env, name)?.to_string_lossy().trim().to_owned();
        (!value.is_empty()).then_some((name, value))
    })
}

fn certificates(env: &Environment) -> Vec<Certificates> {
    let mut found: Vec<Certificates> = Vec::new();
    for (variable, form) in CERTIFICATES {
        let Some(value) = raw(env, variable).filter(|value| !value.is_empty()) else { continue };
        let paths: Vec<PathBuf> = match form {
            Form::Folders => std::env::split_paths(value).collect(),
            Form::File | Form::FileOrFolder => vec![value.into()],
        };
        for path in paths {
            // The same bundle is most often named by several.
            if !path.as_os_str().is_empty() && found.iter().all(|known| known.path != path) {
                found.push(Certificates { variable, path });
            }
        }
    }
    found
}

fn raw<'a>(env: &'a Environment, name: &str) -> Option<&'a OsString> {
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
    fn each_kind_of_address_finds_its_proxy() {
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
            // As curl does, and wget, and Node's fetch.
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
    fn this_machine_and_named_ports_are_reached_directly() {
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
    fn hosts_to_reach_directly_are_listed_as_the_client_reads_them() {
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
    fn every_variable_that_names_certificates_counts() {
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
    fn equal_environments_are_one_network() {
        let first = [("HTTPS_PROXY", "http://p"), ("HOME", "/home/a")];
        let second = [("HOME", "/home/b"), ("HTTPS_PROXY", "http://p")];
        assert_eq!(network(&first), network(&second));
        assert_ne!(network(&first), network(&[("HTTPS_PROXY", "http://q")]));
    }

    #[test]
    fn a_password_is_known_in_every_form_and_never_shown() {
        let network = network(&[("HTTPS_PROXY", "http://joe:hunter%2F22@proxy:3128")]);
        let secrets = network.secrets();
        for form in ["hunter/22", "hunter%2F22", "am9lOmh1bnRlci8yMg=="] {
            assert!(secrets.iter().any(|secret| secret == form), "{form}: {secrets:?}");
        }
        assert!(!format!("{network:?}").contains("hunter"), "{network:?}");
    }

    #[test]
    fn a_proxy_of_an_unknown_kind_is_told_without_its_address() {
        let network = network(&[("HTTPS_PROXY", "ftp://joe:hunter22@proxy")]);
        let [_, proxy] = network.proxies();
        let why = proxy.expect("it is named").url().expect_err("nobody speaks to it");
        assert!(why.starts_with("HTTPS_PROXY names") && !why.contains("hunter22"), "{why}");
    }
}
