//! A listener on a free loopback port, for one redirect of a browser after a login.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Maximum bytes of the browser's request: code and state are short.
const CALLBACK_BYTES_MAX: usize = 8 * 1024;
/// Timeout for reading the browser's request.
const CALLBACK_TIME_MAX: Duration = Duration::from_secs(5);

/// Texts of the pages that the browser shows.
const DONE_PAGE: &str = "You are logged in. You can close this page and go back.";
const REFUSED_PAGE: &str = "The login was refused. You can close this page.";
const NOTHING_PAGE: &str = "There is nothing here.";

/// Waits for the redirect of one login. Dropping it closes the port.
pub struct RedirectListener {
    listener: TcpListener,
    origin: String,
    path: String,
}

impl RedirectListener {
    /// Listens for redirects to this path. The error is a clause.
    pub async fn open(path: impl Into<String>) -> Result<RedirectListener, String> {
        let failed = |error| format!("no local port can be opened for its login: {error}");
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        Ok(RedirectListener { listener, origin: format!("http://127.0.0.1:{port}"), path: path.into() })
    }

    /// The redirect URL.
    pub fn url(&self) -> String {
        format!("{}{}", self.origin, self.path)
    }

    /// Waits for a redirect whose query is accepted, and returns its URL. Other requests are answered and ignored.
    /// Fails if the user refused; the error completes a sentence.
    pub async fn redirected(&self, accepts: impl Fn(&str) -> bool) -> Result<String, String> {
        loop {
            let Ok((mut stream, _)) = self.listener.accept().await else { continue };
            let asked = tokio::time::timeout(CALLBACK_TIME_MAX, read_requested_path(&mut stream)).await;
            let Ok(Some(path)) = asked else { continue };
            let query = path.strip_prefix(&self.path).and_then(|rest| rest.strip_prefix('?'));
            let Some(query) = query else {
                respond(&mut stream, "404 Not Found", NOTHING_PAGE).await;
                continue;
            };
            if parameter(query, "error").is_some() {
                respond(&mut stream, "200 OK", REFUSED_PAGE).await;
                return Err("its login was refused".to_owned());
            }
            if accepts(query) {
                respond(&mut stream, "200 OK", DONE_PAGE).await;
                return Ok(format!("{}{path}", self.origin));
            }
            respond(&mut stream, "400 Bad Request", NOTHING_PAGE).await;
        }
    }
}

/// Whether a query has all of these parameters.
pub fn has(query: &str, names: &[&str]) -> bool {
    names.iter().all(|name| parameter(query, name).is_some())
}

/// The value of a query parameter, still encoded; `None` if it is missing or empty.
pub fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let pairs = query.split(['&', '#']).filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value)
}

async fn read_requested_path(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut piece).await.ok().filter(|count| *count > 0)?;
        head.extend_from_slice(&piece[..count]);
        if head.len() > CALLBACK_BYTES_MAX {
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    head.lines().next()?.strip_prefix("GET ")?.split(' ').next().map(str::to_owned)
}

async fn respond(stream: &mut TcpStream, status: &str, text: &str) {
    let page = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\nreferrer-policy: no-referrer\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    );
    // If the connection is closed, no page is needed.
    drop(stream.write_all(page.as_bytes()).await);
    drop(stream.shutdown().await);
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn visit(url: &str) -> String {
        let rest = url.strip_prefix("http://").expect("an address of this machine");
        let (authority, path) = rest.split_once('/').expect("it has a path");
        let mut stream = TcpStream::connect(authority).await.expect("it listens");
        let request = format!("GET /{path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut page = String::new();
        stream.read_to_string(&mut page).await.expect("it answers");
        page
    }

    #[tokio::test]
    async fn only_a_complete_redirect_is_a_login() {
        let listener = RedirectListener::open("/callback").await.expect("loopback has free ports");
        let url = listener.url();
        let origin = url.strip_suffix("/callback").expect("its path").to_owned();
        let browser = tokio::spawn(async move {
            let paths = [
                "/favicon.ico",
                "/callback",
                "/callback?code=1",
                "/callback?code=1&state=",
                "/callbacks?code=1&state=2",
            ];
            for path in paths {
                assert!(visit(&format!("{origin}{path}")).await.contains(NOTHING_PAGE), "{path}");
            }
            assert!(visit(&format!("{origin}/callback?code=1&state=2")).await.contains(DONE_PAGE));
        });
        let came = listener.redirected(|query| has(query, &["code", "state"])).await;
        assert_eq!(came, Ok(format!("{url}?code=1&state=2")));
        browser.await.expect("no panic");
        drop(listener);
        let authority = &url["http://".len()..url.len() - "/callback".len()];
        assert!(TcpStream::connect(authority).await.is_err(), "a second redirect is not accepted");
    }

    #[tokio::test]
    async fn a_refusal_ends_the_login() {
        let listener = RedirectListener::open("/callback").await.expect("loopback has free ports");
        let url = format!("{}?error=access_denied&state=2", listener.url());
        let browser = tokio::spawn(async move { visit(&url).await });
        assert_eq!(
            listener.redirected(|query| has(query, &["code"])).await,
            Err("its login was refused".to_owned())
        );
        assert!(browser.await.expect("no panic").contains(REFUSED_PAGE));
    }
}
