//! The `[gateway]` table: a server whose models are called from this machine, which needs no keys then. What the server
//! offers is kept in a file, which `epitome_provider::gateway` writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::file::{ConfigReader, TomlValue, fields};
use super::kind::{Kind, text};
use super::sandbox::place;
use super::values::ValueError;

/// The environment variable with the token for a server, if no file is named.
pub const REMOTE_TOKEN_VARIABLE: &str = "EPITOME_REMOTE_TOKEN";

/// The server, and how to connect to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewaySettings {
    /// `https://`, or on this machine `http://`, with host and port.
    pub address: String,
    /// File with the token; `None` for the variable.
    pub token_file: Option<PathBuf>,
    /// File with certificates that are trusted in addition to the public ones.
    pub tls_ca: Option<PathBuf>,
    /// What it offers, as last heard.
    pub offered: Arc<GatewayModels>,
    /// Where that is kept.
    pub file: PathBuf,
}

/// The models of a server. `epitome_provider` reads the descriptions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayModels {
    /// The server.
    #[serde(default)]
    pub address: String,
    /// The model that it uses if none is chosen.
    pub default: Option<String>,
    /// Names with descriptions.
    pub models: Vec<(String, Json)>,
}

impl GatewayModels {
    pub fn find(&self, model: &str) -> Option<&Json> {
        self.models.iter().find(|(name, _)| name == model).map(|(_, description)| description)
    }
}

impl GatewaySettings {
    /// Reads what the server offered last, if it is this one.
    pub(super) fn read_offered(&mut self, data: &Path) {
        self.file = data.join("gateway.json");
        let read = std::fs::read(&self.file).ok();
        let offered = read.and_then(|bytes| serde_json::from_slice::<GatewayModels>(&bytes).ok());
        let same = offered.filter(|offered| offered.address == self.address);
        self.offered = same.map(Arc::new).unwrap_or_default();
    }

    /// Whether the server was never reached, so that its models are unknown.
    pub fn is_unknown(&self) -> bool {
        self.offered.address.is_empty()
    }
}

impl ConfigReader<'_> {
    pub(super) fn gateway(&mut self, value: &TomlValue<'_>, gateway: &mut Option<GatewaySettings>) {
        let (before, home) = (self.problem_count(), self.owner.home());
        let Some(table) = self.table(value, "gateway") else { return };
        let mut read = gateway.clone().unwrap_or_default();
        let mut address = gateway.as_ref().map(|gateway| gateway.address.clone());
        fields!(self, table, key, value, {
            "address" => self.set(value, &mut address, server_address()),
            "token_file" => self.set(value, &mut read.token_file, file(home)),
            "tls_ca" => self.set(value, &mut read.tls_ca, file(home)),
        });
        match address {
            _ if self.problem_count() > before => {}
            Some(address) => *gateway = Some(GatewaySettings { address, ..read }),
            None => {
                let hint = "address = \"wss://build.example:4711\"".to_owned();
                self.problem(value.span(), "the gateway has no address".to_owned(), Some(hint));
            }
        }
    }
}

/// An address as `epitome acp --remote` takes it, too.
fn server_address() -> Kind<String> {
    let schema = json!({ "type": "string", "pattern": "^(wss|https|ws|http)://[^/?#@]+/?$" });
    Kind::plain(schema, |value| {
        let written = text().read(value)?;
        let (scheme, rest) = written.split_once("://").unwrap_or_default();
        let authority = rest.trim_end_matches('/');
        let is_host = !authority.is_empty() && !authority.contains(['/', '?', '#', '@', ' ']);
        Err(ValueError::new(match scheme {
            "wss" | "https" | "ws" | "http" if !is_host => {
                "the address of a server has a host, perhaps a port, and nothing else"
            }
            "wss" | "https" => return Ok(format!("https://{authority}")),
            "ws" | "http" if is_this_machine(authority) => return Ok(format!("http://{authority}")),
            "ws" | "http" => {
                "this server is another machine, and ws:// and http:// are not encrypted: use wss:// or https://, \
                 or a tunnel to this machine"
            }
            _ => "the address of a server begins with wss:// or https://",
        }))
    })
}

fn is_this_machine(authority: &str) -> bool {
    let host = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, _)) => inside,
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn file(home: Option<&Path>) -> Kind<PathBuf> {
    let home = home.map(Path::to_path_buf);
    let schema = json!({ "type": "string", "pattern": "^(/|~/)" });
    let written = |path: &PathBuf| json!(path.display().to_string());
    Kind::new(schema, written, move |value| {
        place(text().read(value)?, home.as_deref()).map_err(|error| error.hint("write /… or ~/…"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::apply;
    use crate::{FileOwner, Settings};
    use epitome_thread::problem::Problem;

    fn read(text: &str) -> (Option<GatewaySettings>, Vec<Problem>) {
        let mut settings = Settings::default();
        let owner = FileOwner::User { home: Some(Path::new("/home/ann")) };
        let (_, problems) = apply(&mut settings, Path::new("config.toml"), text, owner);
        (settings.gateway, problems)
    }

    #[test]
    fn a_gateway_is_an_address_and_a_token() {
        let (gateway, problems) = read(
            "[gateway]\naddress = \"wss://build.example:4711/\"\ntoken_file = \"~/work.token\"\ntls_ca = \"/ca.pem\"\n",
        );
        assert!(problems.is_empty(), "{problems:?}");
        let gateway = gateway.expect("it is complete");
        assert_eq!(gateway.address, "https://build.example:4711");
        assert_eq!(gateway.token_file.as_deref(), Some(Path::new("/home/ann/work.token")));
        assert_eq!(gateway.tls_ca.as_deref(), Some(Path::new("/ca.pem")));
        let (local, _) = read("[gateway]\naddress = \"ws://127.0.0.1:4711\"\n");
        assert_eq!(local.expect("a tunnel").address, "http://127.0.0.1:4711");
    }

    #[test]
    fn an_address_that_is_not_encrypted_or_not_only_a_host_is_refused() {
        for (address, part) in [
            ("ws://build.example:4711", "not encrypted"),
            ("build.example", "begins with wss://"),
            ("ftp://build.example", "begins with wss://"),
            ("https://me:secret@build.example", "nothing else"),
            ("https://build.example/v1", "nothing else"),
        ] {
            let (gateway, problems) = read(&format!("[gateway]\naddress = {address:?}\n"));
            assert_eq!(gateway, None, "{address}");
            assert!(problems[0].message.contains(part), "{address}: {problems:?}");
            assert!(!problems[0].to_string().contains("secret"), "{problems:?}");
        }
        let (gateway, problems) = read("[gateway]\ntls_ca = \"/ca.pem\"\n");
        assert!(gateway.is_none() && problems[0].message.contains("no address"), "{problems:?}");
    }
}
