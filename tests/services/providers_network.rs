//! Model calls over real connections: TLS with an unknown certificate authority, proxies, HTTP/2, limits, and
//! connection reuse. Every server runs on loopback and is created by its test.

mod calls;
mod compactions;
mod connections;
mod counts;
mod limits;
mod proxies;
mod secrets;
mod servers;
mod tls;
