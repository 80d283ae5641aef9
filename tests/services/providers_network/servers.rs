//! Servers for the tests: plain connections, TLS, and proxies.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A name that does not resolve: only a proxy of the test reaches it.
pub const FAR: &str = "models.test";

/// An unknown certificate authority, and a server certificate signed by it for loopback and `FAR`. Both are valid until
/// 2120.
const AUTHORITY: &[u8] = include_bytes!("certificates/ca.pem");
const SERVER: &[u8] = include_bytes!("certificates/server.pem");
const KEY: &[u8] = include_bytes!("certificates/server.key");

pub const EVENTS: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// A complete reply, after which the connection can be reused.
pub fn reply() -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{EVENTS}",
        EVENTS.len()
    )
}

/// A response with a JSON body.
pub fn answer(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// Reads one request with its body; `None` if the peer has disconnected.
pub async fn read_request(socket: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = header(head, "content-length").and_then(|length| length.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        match socket.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => request.extend_from_slice(&buffer[..count]),
        }
    }
}

/// The value of a header of a request or response.
pub fn header(head: &str, wanted: &str) -> Option<String> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case(wanted).then(|| value.to_owned())
    })
}

/// Answers every request of a connection in the same way, and returns the requests when the peer disconnects.
pub async fn converse(mut socket: impl AsyncRead + AsyncWrite + Unpin, response: &str) -> Vec<String> {
    let mut requests = Vec::new();
    while let Some(request) = read_request(&mut socket).await {
        requests.push(request);
        if socket.write_all(response.as_bytes()).await.is_err() {
            break;
        }
    }
    requests
}

/// An unknown certificate authority, and a server certificate signed by it.
pub struct Authority {
    pub folder: TempDir,
    acceptor: TlsAcceptor,
}

impl Authority {
    /// `protocols` are those that the server offers, in order of preference.
    pub fn new(protocols: &[&str]) -> Authority {
        let folder = tempfile::tempdir().expect("a folder can be made");
        std::fs::write(folder.path().join("ca.pem"), AUTHORITY).expect("it can be written");
        let certificate = CertificateDer::from_pem_slice(SERVER).expect("it is a certificate");
        let key = PrivateKeyDer::from_pem_slice(KEY).expect("it is a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("certificate and key belong together");
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Authority { folder, acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    /// The authority's certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    pub async fn accept(&self, socket: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        self.acceptor.accept(socket).await
    }
}

/// A proxy that accepts one connection and forwards it to `target`, whatever was requested. Requires
/// `user:password` if given. Returns the received request.
pub async fn proxy(target: SocketAddr, wanted: Option<&'static str>) -> (SocketAddr, JoinHandle<String>) {
    let (listener, address) = listen().await;
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("the client comes");
        let request = read_request(&mut socket).await.expect("it asks");
        let basic = |user: &str| format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(user));
        if wanted.is_some_and(|user| header(&request, "proxy-authorization") != Some(basic(user))) {
            let refusal = "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
            socket.write_all(refusal.as_bytes()).await.expect("the client reads");
            return request;
        }
        let mut server = TcpStream::connect(target).await.expect("the target listens");
        match request.starts_with("CONNECT ") {
            true => socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("the client reads"),
            false => server.write_all(request.as_bytes()).await.expect("the server reads"),
        }
        let _ = copy_bidirectional(&mut socket, &mut server).await;
        request
    });
    (address, serving)
}

/// A SOCKS5 proxy (RFC 1928, RFC 1929) for one connection, which is forwarded to `target`. Returns the
/// received user and password.
pub async fn socks(target: SocketAddr) -> (SocketAddr, JoinHandle<(String, String)>) {
    let (listener, address) = listen().await;
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("the client comes");
        let [_, methods] = bytes(&mut socket).await;
        let mut offered = vec![0; methods.into()];
        socket.read_exact(&mut offered).await.expect("it offers");
        assert!(offered.contains(&2), "user and password are offered: {offered:?}");
        socket.write_all(&[5, 2]).await.expect("the client reads");
        let [_] = bytes(&mut socket).await;
        let user = text(&mut socket).await;
        let password = text(&mut socket).await;
        socket.write_all(&[1, 0]).await.expect("the client reads");
        let [_, _, _, kind] = bytes(&mut socket).await;
        match kind {
            1 => drop(bytes::<4>(&mut socket).await),
            3 => drop(text(&mut socket).await),
            other => panic!("an address of kind {other}"),
        }
        let _: [u8; 2] = bytes(&mut socket).await;
        socket.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.expect("the client reads");
        let mut server = TcpStream::connect(target).await.expect("the target listens");
        let _ = copy_bidirectional(&mut socket, &mut server).await;
        (user, password)
    });
    (address, serving)
}

async fn bytes<const N: usize>(socket: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).await.expect("they are sent");
    bytes
}

async fn text(socket: &mut TcpStream) -> String {
    let [length] = bytes(socket).await;
    let mut text = vec![0; length.into()];
    socket.read_exact(&mut text).await.expect("it is sent");
    String::from_utf8(text).expect("it is text")
}
