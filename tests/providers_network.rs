//! Model calls over real connections: TLS with an unknown certificate authority, proxies, HTTP/2, limits, and
//! connection reuse. Every server runs on loopback and is created by its test.

#[path = "providers_network/calls.rs"]
mod calls;
#[path = "providers_network/compactions.rs"]
mod compactions;
#[path = "providers_network/connections.rs"]
mod connections;
#[path = "providers_network/counts.rs"]
mod counts;
#[path = "providers_network/limits.rs"]
mod limits;
#[path = "providers_network/proxies.rs"]
mod proxies;
#[path = "providers_network/secrets.rs"]
mod secrets;
#[path = "providers_network/servers.rs"]
mod servers;
#[path = "providers_network/tls.rs"]
mod tls;
