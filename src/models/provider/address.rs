//! Accessors for parts of base URLs. URLs are not validated here: an invalid one fails when a request is sent.

use std::net::Ipv4Addr;

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};

/// Whether the host is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host == "[::1]" || host.parse::<Ipv4Addr>().is_ok_and(|host| host.is_loopback())
}

/// The host of a URL, without user and port. IPv6 addresses keep their brackets.
pub(super) fn host_of(url: &str) -> &str {
    let authority = authority_of(url);
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, _)) => &authority[..inside.len() + 2],
        None => authority.split(':').next().unwrap_or(authority),
    }
}

/// The port of a URL, or the default of its scheme.
pub(super) fn port_of(url: &str) -> u16 {
    let after_host = &authority_of(url)[host_of(url).len()..];
    let default = if url.starts_with("https:") { 443 } else { 80 };
    after_host.strip_prefix(':').and_then(|port| port.parse().ok()).unwrap_or(default)
}

/// A base URL without the trailing `/v1` that some vendors include.
pub(super) fn without_v1(base: &str) -> String {
    let (place, query) = base.split_at(base.find(['?', '#']).unwrap_or(base.len()));
    let place = place.trim_end_matches('/');
    format!("{}{query}", place.strip_suffix("/v1").unwrap_or(place))
}

/// Whether the path ends with an API version, such as `/v1` or `/v1beta`.
pub(super) fn has_version(base: &str) -> bool {
    let last = path_of(base).rsplit('/').next().unwrap_or_default();
    let Some(number) = last.strip_prefix('v') else { return false };
    let tail = number.trim_start_matches(|c: char| c.is_ascii_digit());
    tail.len() < number.len()
        && ["", "alpha", "beta"].contains(&tail.trim_end_matches(|c: char| c.is_ascii_digit()))
}

/// Host and port of a URL, without user and password.
pub(super) fn authority_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit('@').next().unwrap_or(authority)
}

/// The value of the `Host` header: without the port if that is the scheme's default.
pub(super) fn sent_authority(url: &str) -> String {
    let own = if url.starts_with("http:") { 80 } else { 443 };
    match port_of(url) {
        port if port == own => host_of(url).to_owned(),
        port => format!("{}:{port}", host_of(url)),
    }
}

/// Whether requests can be sent to this URL: its scheme is HTTP(S) and it has a host.
pub(super) fn is_http(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) && !host_of(url).is_empty()
}

/// The path with its leading slash, or an empty string.
pub(super) fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or(rest);
    rest.find('/').map_or("", |at| &rest[at..])
}

/// Appends `path` to the URL's path and keeps the query. Fragments are dropped, as they are never sent.
pub(super) fn beneath(url: &str, path: &str) -> String {
    let url = url.split('#').next().unwrap_or(url);
    match url.split_once('?') {
        Some((place, query)) => format!("{}{path}?{query}", place.trim_end_matches('/')),
        None => format!("{}{path}", url.trim_end_matches('/')),
    }
}

/// Appends one or more `name=value` pairs to the URL's query.
pub(super) fn with_query(url: &str, query: &str) -> String {
    format!("{url}{}{query}", if url.contains('?') { '&' } else { '?' })
}

/// All characters that have to be percent-encoded in some part of a URL.
pub(super) const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Percent-encodes a value for a query or a part of a path, as it may contain anything.
pub(super) fn escaped(value: &str) -> String {
    utf8_percent_encode(value, &RESERVED).to_string()
}

/// Percent-encodes a model's name for a path. Slashes remain: gateways have models with several parts.
pub(super) fn escaped_model(name: &str) -> String {
    const NOT_PLAIN: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'?').add(b'\\');
    utf8_percent_encode(name, NOT_PLAIN).to_string()
}

/// Replaces the part of a URL that may contain a password.
const NOT_SHOWN: &str = "[not shown]";

/// The URL in a form that is safe to display: without user, password and query.
pub(super) fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + "://".len()));
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = match authority.rsplit_once('@') {
        Some((_, host)) => host,
        // The apparent host may be the first part of a password that contains one of these characters.
        None if rest.contains('@') => return format!("{scheme}{NOT_SHOWN}"),
        None => authority,
    };
    format!("{scheme}{host}{}", path_of(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        for (host, expected) in [
            ("localhost", true),
            ("127.0.0.1", true),
            ("[::1]", true),
            ("127.example.com", false),
            ("box", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }

    #[test]
    fn only_http_urls_with_a_host_are_accepted() {
        for (url, expected) in [
            ("https://host/v1", true),
            ("HTTP://127.0.0.1:8000", true),
            ("http://user:pw@box", true),
            ("127.0.0.1:8000/v1", false),
            ("localhost", false),
            ("http:", false),
            ("http://", false),
            ("https:///v1", false),
            ("ftp://host", false),
            ("", false),
        ] {
            assert_eq!(is_http(url), expected, "{url}");
        }
    }

    #[test]
    fn api_version_is_the_last_path_segment() {
        for (url, expected) in [
            ("https://host/v1", true),
            ("https://host/v1beta", true),
            ("https://host/google/v1beta1", true),
            ("https://host", false),
            ("https://v1", false),
            ("https://host/v1/google", false),
            ("https://host/vertex", false),
            ("https://host/v", false),
        ] {
            assert_eq!(has_version(url), expected, "{url}");
        }
    }

    #[test]
    fn paths_are_inserted_before_the_query() {
        for (base, whole) in [
            ("https://host", "https://host/v1/models"),
            ("https://host/api/", "https://host/api/v1/models"),
            ("https://host/api?key=a/b", "https://host/api/v1/models?key=a/b"),
            ("https://host/?key=k#top", "https://host/v1/models?key=k"),
        ] {
            assert_eq!(beneath(base, "/v1/models"), whole);
        }
        assert_eq!(with_query("https://host/v1", "alt=sse"), "https://host/v1?alt=sse");
        assert_eq!(with_query("https://host/v1?key=k", "alt=sse"), "https://host/v1?key=k&alt=sse");
    }

    /// Regression: a `#` in a password ended the apparent host, so the first half of the password was displayed.
    #[test]
    fn no_part_of_a_password_is_shown() {
        for (url, expected) in [
            ("https://me:pw@box:8000/v1?key=k", "https://box:8000/v1"),
            ("https://box/v1#x", "https://box/v1"),
            ("https://box?key=/k", "https://box"),
            ("me:pw@box/v1", "box/v1"),
            ("https://me:p@w@box/v1", "https://box/v1"),
            ("https://me:p#w@box/v1", "https://[not shown]"),
            ("https://me:p/w@box/v1", "https://[not shown]"),
            ("https://box/v1?key=a@b", "https://[not shown]"),
            ("", ""),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }

    #[test]
    fn hosts_and_ports_are_parsed_from_any_url() {
        for (url, host, port) in [
            ("https://api.anthropic.com", "api.anthropic.com", 443),
            ("http://user:pw@box:8000/v1", "box", 8000),
            ("http://[::1]:11434/v1", "[::1]", 11434),
            ("http://localhost/v1", "localhost", 80),
            ("box:1234", "box", 1234),
            ("", "", 80),
        ] {
            assert_eq!((host_of(url), port_of(url)), (host, port), "{url}");
        }
    }
}
