//! Fetches a single document and restricts where the request can go: only `http` and `https`, no redirects to another
//! host, and, unless allowed, no addresses of this machine or of a private network. The request goes to the address
//! that was checked, so DNS rebinding has no effect.
//!
//! If there is a proxy, it resolves names. The addresses that this machine resolves are still checked, but the proxy's
//! own resolution can't be.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, LOCATION};
use reqwest::{Response, Url};
use tokio::time::timeout;

use super::clients::{self, ClientKey};
use super::{HttpError, read_start};
use crate::network::Network;

/// Maximum bytes of a document after decompression.
pub const BODY_BYTES_MAX: usize = 5 * 1024 * 1024;

/// Timeout for the entire fetch, including redirects.
pub const TIME_MAX: Duration = Duration::from_secs(30);

/// Timeout for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Maximum redirects within a host.
const REDIRECTS_MAX: usize = 5;

/// Maximum characters of a URL: similar to the limits of browsers and servers.
const ADDRESS_CHARS_MAX: usize = 4_096;

/// Preferred content types.
const WANTED: &str =
    "text/markdown, text/html;q=0.9, application/xhtml+xml;q=0.9, text/*;q=0.8, image/*;q=0.5, */*;q=0.1";

/// A validated URL that can be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(Url);

/// Result of a fetch.
#[derive(Debug)]
pub enum Fetched {
    Document(Document),
    /// A redirect to another host, which was not followed.
    Elsewhere {
        to: String,
    },
}

#[derive(Debug)]
pub struct Document {
    /// The final URL.
    pub address: Address,
    pub status: u16,
    /// The content type as sent by the server, in lower case, with its parameters; may be empty.
    pub content_type: String,
    pub body: Vec<u8>,
    /// Whether the document was longer than the limit.
    pub is_cut: bool,
}

/// Why a text is not the address of a document. Its text is a sentence.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("The address has more than {ADDRESS_CHARS_MAX} characters.")]
    TooLong,
    #[error("{text:?} is not an address that can be fetched ({source}). Addresses begin with https://.")]
    Malformed { text: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("Only http and https addresses can be fetched, and this one is {scheme}:.")]
    Scheme { scheme: String },
    #[error("An address with a user or a password in it is not fetched. Leave them out.")]
    Login,
    #[error("{text:?} names no host.")]
    NoHost { text: String },
}

/// Why a document was not fetched. Its text is a sentence.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("{host} did not answer whole within {} seconds.", TIME_MAX.as_secs())]
    Late { host: String },
    #[error("{host} redirects in a circle.")]
    Circle { host: String },
    #[error("{host} could not be reached: {source}.")]
    Unreachable { host: String, source: HttpError },
    #[error("{host} is not known: {source}.")]
    UnknownHost { host: String, source: std::io::Error },
    #[error(
        "{host} is {named}an address of this machine or of a private network, which is not fetched. Only the user can \
         allow that, in the configuration (web_fetch.private_networks)."
    )]
    Private { host: String, named: String },
    #[error("{host} broke off: {source}.")]
    BrokeOff { host: String, source: HttpError },
}

/// The target of a redirect.
enum RedirectTarget {
    SameHost(Address),
    /// A URL that is not followed.
    Elsewhere(String),
}

impl Address {
    /// Parses a URL.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        let text = text.trim();
        if text.chars().count() > ADDRESS_CHARS_MAX {
            return Err(AddressError::TooLong);
        }
        let mut url = Url::parse(text)
            .map_err(|source| AddressError::Malformed { text: text.to_owned(), source: Box::new(source) })?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(AddressError::Scheme { scheme: url.scheme().to_owned() });
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressError::Login);
        }
        url.set_fragment(None);
        match url.host_str() {
            Some(_) => Ok(Address(url)),
            None => Err(AddressError::NoHost { text: text.to_owned() }),
        }
    }

    pub fn url(&self) -> &str {
        self.0.as_str()
    }

    /// The host that receives the request, with the port unless it is the default. A final dot is left out: the name
    /// means the same with and without it.
    pub fn host(&self) -> String {
        let host = self.0.host_str().unwrap_or_default();
        let host = host.strip_suffix('.').unwrap_or(host);
        match self.0.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// The URL of a link on this page; `None` if the link is neither a page nor a mail address.
    pub fn link(&self, link: &str) -> Option<String> {
        let url = self.0.join(link.trim()).ok()?;
        matches!(url.scheme(), "http" | "https" | "mailto").then(|| url.into())
    }

    /// The target of a redirect. An upgrade from http to https stays on the same host.
    fn redirect(&self, location: &str) -> RedirectTarget {
        let Ok(to) = self.0.join(location) else { return RedirectTarget::Elsewhere(location.to_owned()) };
        let upgraded = self.0.scheme() == "http" && to.scheme() == "https";
        let same_scheme = self.0.scheme() == to.scheme();
        let same_port =
            self.0.port() == to.port() || (upgraded && to.port().is_none() && self.0.port().is_none());
        let same = self.0.host_str() == to.host_str() && same_port && (same_scheme || upgraded);
        match Address::parse(to.as_str()) {
            Ok(next) if same => RedirectTarget::SameHost(next),
            Ok(_) | Err(_) => RedirectTarget::Elsewhere(to.into()),
        }
    }
}

/// Fetches a document. `private` allows addresses of this machine and of private networks.
/// Dropping the future cancels the request.
pub async fn fetch(address: &Address, network: &Network, private: bool) -> Result<Fetched, FetchError> {
    let fetching = timeout(TIME_MAX, follow(address.clone(), network, private));
    fetching.await.unwrap_or_else(|_| Err(FetchError::Late { host: address.host() }))
}

async fn follow(mut address: Address, network: &Network, private: bool) -> Result<Fetched, FetchError> {
    for _ in 0..=REDIRECTS_MAX {
        let response = ask(&address, network, private).await?;
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        match location.filter(|_| response.status().is_redirection()) {
            None => return read(address, response).await.map(Fetched::Document),
            Some(location) => match address.redirect(location) {
                RedirectTarget::SameHost(next) => address = next,
                RedirectTarget::Elsewhere(to) => return Ok(Fetched::Elsewhere { to }),
            },
        }
    }
    Err(FetchError::Circle { host: address.host() })
}

async fn ask(address: &Address, network: &Network, private: bool) -> Result<Response, FetchError> {
    let addresses = checked(address, network, private).await?;
    let key = ClientKey::without_provider(network, address.url(), CONNECT_MAX);
    let host = address.0.host_str().unwrap_or_default();
    let failed = |source| FetchError::Unreachable { host: address.host(), source };
    let client = clients::pinned(&key, host, &addresses).map_err(|error| failed(error.into()))?;
    let sent = client.get(address.0.clone()).header(ACCEPT, WANTED).send().await;
    sent.map_err(|error| failed(HttpError::transfer(error)))
}

/// Resolves a host; an address that is not allowed is an error. Empty if only a proxy can resolve the name.
async fn checked(address: &Address, network: &Network, private: bool) -> Result<Vec<SocketAddr>, FetchError> {
    let host = address.0.host_str().unwrap_or_default();
    let port = address.0.port_or_known_default().unwrap_or(443);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> = match bare.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => match tokio::net::lookup_host((host, port)).await {
            Ok(found) => found.collect(),
            Err(_) if network.variable_of(address.url()).is_some() => Vec::new(),
            Err(source) => return Err(FetchError::UnknownHost { host: host.to_owned(), source }),
        },
    };
    if !private && let Some(inside) = found.iter().find(|found| !is_public(found.ip())) {
        let ip = inside.ip().to_string();
        let named = if bare == ip { String::new() } else { format!("{ip}, ") };
        return Err(FetchError::Private { host: host.to_owned(), named });
    }
    Ok(found)
}

async fn read(address: Address, mut response: Response) -> Result<Document, FetchError> {
    let content_type =
        response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (content_type, status) = (content_type.to_ascii_lowercase(), response.status().as_u16());
    let mut body = Vec::new();
    let is_cut = read_start(&mut response, BODY_BYTES_MAX, &mut body)
        .await
        .map_err(|error| FetchError::BrokeOff { host: address.host(), source: HttpError::transfer(error) })?;
    Ok(Document { address, status, content_type, body, is_cut })
}

/// Whether an address belongs to the public internet.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_protocol = (a, b, c) == (192, 0, 0);
    let is_benchmark = a == 198 && (18..20).contains(&b);
    !(a == 0
        || a >= 224
        || ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || is_shared
        || is_protocol
        || is_benchmark)
}

/// Addresses that embed an IPv4 address are classified by that address.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => v4(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        // Teredo and documentation.
        [0x2001, 0 | 0xdb8, ..] => false,
        // The only block allocated for global unicast.
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_and_reserved_addresses_are_not_public() {
        for (ip, expected) in [
            ("93.184.216.34", true),
            ("127.0.0.1", false),
            ("10.1.2.3", false),
            ("172.16.0.1", false),
            ("172.32.0.1", true),
            ("192.168.1.1", false),
            ("169.254.169.254", false),
            ("100.64.0.1", false),
            ("0.0.0.0", false),
            ("198.18.0.1", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("2606:2800:220:1::1", true),
            ("::1", false),
            ("::", false),
            ("fe80::1", false),
            ("fd00::1", false),
            ("ff02::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:93.184.216.34", true),
            ("64:ff9b::10.0.0.1", false),
            ("64:ff9b:1::1", false),
            ("2002:7f00:1::", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_public(ip.parse().expect("an address")), expected, "{ip}");
        }
    }

    #[test]
    fn urls_are_normalized_and_checked_when_parsed() {
        for (text, expected) in [
            ("https://Example.com/a#b", Ok(("https://example.com/a", "example.com"))),
            ("http://example.com:8080/", Ok(("http://example.com:8080/", "example.com:8080"))),
            ("http://Example.com.:8080/", Ok(("http://example.com.:8080/", "example.com:8080"))),
            ("http://example.com./", Ok(("http://example.com./", "example.com"))),
            ("http://127.1/", Ok(("http://127.0.0.1/", "127.0.0.1"))),
            ("http://0x7f000001/", Ok(("http://127.0.0.1/", "127.0.0.1"))),
            ("http://[::1]/", Ok(("http://[::1]/", "[::1]"))),
            ("https://good.example@evil.example/", Err("user")),
            ("file:///etc/passwd", Err("Only http")),
            ("ftp://example.com", Err("Only http")),
            ("example.com", Err("not an address")),
            ("https://", Err("not an address")),
        ] {
            match (Address::parse(text), expected) {
                (Ok(address), Ok((url, host))) => {
                    assert_eq!((address.url(), address.host().as_str()), (url, host), "{text}");
                }
                (Err(why), Err(part)) => assert!(why.to_string().contains(part), "{text}: {why}"),
                (read, _) => panic!("{text}: {read:?}"),
            }
        }
    }

    #[test]
    fn redirects_stay_on_the_same_host() {
        let from = |url: &str| Address::parse(url).expect("an address");
        for (url, location, expected) in [
            ("http://a.example/x", "/y", Ok("http://a.example/y")),
            ("http://a.example/x", "https://a.example/x", Ok("https://a.example/x")),
            ("https://a.example/x", "http://a.example/x", Err("http://a.example/x")),
            ("https://a.example/x", "https://www.a.example/", Err("https://www.a.example/")),
            ("https://a.example/x", "//b.example/", Err("https://b.example/")),
            ("https://a.example/x", "https://a.example:8443/", Err("https://a.example:8443/")),
            ("https://a.example/x", "file:///etc/passwd", Err("file:///etc/passwd")),
            ("https://a.example/x", "https://me@a.example/", Err("https://me@a.example/")),
        ] {
            let target = from(url).redirect(location);
            let target = match &target {
                RedirectTarget::SameHost(next) => Ok(next.url()),
                RedirectTarget::Elsewhere(to) => Err(to.as_str()),
            };
            assert_eq!(target, expected, "{url} to {location}");
        }
    }

    #[tokio::test]
    async fn loopback_is_rejected_under_every_name() {
        for url in [
            "http://127.0.0.1:1/",
            "http://localhost:1/",
            "http://2130706433:1/",
            "http://[::ffff:7f00:1]:1/",
        ] {
            let address = Address::parse(url).expect("an address");
            let why = fetch(&address, &Network::default(), false).await.expect_err("it is refused");
            assert!(matches!(why, FetchError::Private { .. }), "{url}: {why}");
        }
    }
}
