//! MCP server configuration: the `[mcp]` table and servers given by a client. Data only; starts nothing.
//!
//! A repository's file may name servers. Each server records its source and the digest of its definition, so
//! that nothing from a repository runs before the user has allowed it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::FileOwner;
use super::file::{ConfigReader, TomlKey, TomlValue, fields};
use super::kind::{names, seconds, text, truth};
use super::values::{ValueError, arguments, header_map, headers, url, variable};
use epitome_secrets as secrets;
use epitome_thread::visible::code;

/// MCP servers, and how long the first prompt waits for them.
#[derive(Clone, Debug, PartialEq)]
pub struct McpSettings {
    /// How long the first prompt waits for servers that are still connecting.
    pub wait: Duration,
    /// In file order, sorted by name within each file.
    pub servers: Vec<McpServer>,
    /// Secret variables that the user permits to repositories' servers, by server name.
    pub repository_variables: BTreeMap<String, Vec<String>>,
}

impl McpSettings {
    /// Copies the permitted variables to the servers of repositories.
    pub(super) fn apply_allowed_variables(&mut self) {
        for server in &mut self.servers {
            if let McpSource::Repository { .. } = server.from {
                server.allowed_variables =
                    self.repository_variables.get(&server.name).cloned().unwrap_or_default();
            }
        }
    }
}

impl Default for McpSettings {
    fn default() -> McpSettings {
        McpSettings {
            wait: Duration::from_secs(5),
            servers: Vec::new(),
            repository_variables: BTreeMap::new(),
        }
    }
}

/// Default time that a call may take without progress.
pub const MCP_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum number of servers per source; users have a handful.
pub const MCP_SERVERS_MAX: usize = 32;
/// Maximum length of a server's name in bytes.
pub const MCP_NAME_BYTES_MAX: usize = 128;

/// A server: its name and its connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    pub name: String,
    pub from: McpSource,
    pub way: McpTransport,
    pub enabled: bool,
    /// How long a call may take without progress.
    pub timeout: Duration,
    /// Tools to expose, by the server's names; `None` exposes all.
    pub tools: Option<Vec<String>>,
    /// Secret variables that the user's settings permit to a repository's server.
    #[serde(default)]
    pub allowed_variables: Vec<String>,
    /// The directory in which the process is started, relative to the session's directory; `None` is the session's.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Whether a process is started with the session, also if its tools are known from an earlier one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub start_with_session: bool,
    /// The sandbox of a process, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<McpSandbox>,
}

/// The sandbox of a server's process: that of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpSandbox {
    /// Whether the network may be used; `None` as by commands.
    pub network: Option<bool>,
}

/// The origin of a server definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McpSource {
    /// The client that opened the session.
    Client,
    /// The user's settings.
    Person,
    /// A file of a repository. The user's consent covers `digest`: the definition and the files that it names. It is
    /// empty until they are read from the disk.
    Repository { file: PathBuf, digest: String },
}

/// The connection to a server. Arguments, environments, headers and addresses may contain keys: `Debug` prints none
/// of their values.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum McpTransport {
    /// A child process, connected through stdin and stdout.
    Stdio {
        command: String,
        args: Vec<String>,
        /// Added to the session's environment.
        env: Vec<(String, String)>,
    },
    /// Streamable HTTP.
    Http {
        url: String,
        headers: Vec<(String, String)>,
        /// The environment variable whose value is sent as a bearer token.
        key_variable: Option<String>,
    },
    /// The connection of the client that provides the server. Only for servers of clients.
    Client {
        /// The client's id of the server.
        id: String,
    },
}

impl McpTransport {
    /// The program, the host or the client, for the user. Arguments and paths of addresses may contain keys and are left
    /// out.
    pub fn target(&self) -> String {
        match self {
            McpTransport::Stdio { command, .. } => command.clone(),
            McpTransport::Http { url, .. } => origin(url),
            McpTransport::Client { .. } => "over its own connection".to_owned(),
        }
    }
}

impl fmt::Debug for McpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Arguments may contain keys as well.
            McpTransport::Stdio { command, args, env } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", &args.len())
                .field("env", &names_of(env))
                .finish(),
            McpTransport::Http { url: _, headers, key_variable } => f
                .debug_struct("Http")
                .field("headers", &names_of(headers))
                .field("key_variable", key_variable)
                .finish_non_exhaustive(),
            McpTransport::Client { id } => f.debug_struct("Client").field("id", id).finish(),
        }
    }
}

fn names_of(pairs: &[(String, String)]) -> Vec<&str> {
    pairs.iter().map(|(name, _)| name.as_str()).collect()
}

impl McpServer {
    /// Creates a server with defaults for everything except its connection.
    pub fn new(name: String, from: McpSource, way: McpTransport) -> McpServer {
        McpServer {
            name,
            from,
            way,
            enabled: true,
            timeout: MCP_TIMEOUT,
            tools: None,
            allowed_variables: Vec::new(),
            directory: None,
            start_with_session: false,
            sandbox: None,
        }
    }

    /// The definition as text: everything that determines which command is run or which host is contacted.
    pub fn definition(&self) -> String {
        let mut definition = vec![serde_json::json!(self.name), serde_json::json!(self.way)];
        definition
            .extend(self.directory.as_ref().map(|directory| serde_json::json!(directory.to_string_lossy())));
        definition.extend(self.sandbox.as_ref().map(|sandbox| serde_json::json!({ "sandbox": sandbox })));
        serde_json::Value::Array(definition).to_string()
    }

    /// The command or address of the server, as it is written in the file: variables or headers, then the command line
    /// or the address. Values that are secret are not shown.
    pub fn runs(&self) -> String {
        let given = |pairs: &[(String, String)], sign: &str| -> String {
            let lines = pairs.iter().map(|(name, value)| match secrets::is_secret_name(name) {
                true if !value.starts_with("${") => format!("{name}{sign}[a secret, not shown]\n"),
                true | false => format!("{name}{sign}{}\n", secrets::mask(value)),
            });
            lines.collect()
        };
        match &self.way {
            McpTransport::Stdio { command, args, env } => {
                let line: Vec<&str> = std::iter::once(command).chain(args).map(String::as_str).collect();
                given(env, "=") + &line.join(" ")
            }
            McpTransport::Http { url, headers, key_variable: _ } => given(headers, ": ") + url,
            McpTransport::Client { .. } => self.way.target(),
        }
    }

    /// Introduces what the server `runs`, in Markdown: its name, its directory, and the variables that it uses.
    pub fn description(&self) -> String {
        let directory = self.directory.as_ref().map(|path| code(&path.display().to_string()));
        let directory = directory.map(|path| format!(" in {path}")).unwrap_or_default();
        let way = match &self.way {
            McpTransport::Stdio { .. } => match self.sandbox.map(|sandbox| sandbox.network) {
                Some(Some(true)) => "runs in the sandbox, but with access to the network",
                Some(Some(false)) => "runs in the sandbox without the network",
                Some(None) => "runs in the sandbox of commands",
                None => "runs",
            },
            McpTransport::Http { .. } | McpTransport::Client { .. } => "asks",
        };
        let uses: Vec<String> = self
            .variables()
            .iter()
            .map(|used| format!("{} (in {})", code(&used.name), code(&used.place)))
            .collect();
        let uses = match uses.as_slice() {
            [] => String::new(),
            uses => format!(" with the values of your variables {}", uses.join(", ")),
        };
        format!("the MCP server {} {way}{directory}{uses}", code(&self.name))
    }
}

/// Returns the scheme and host of a URL; user info, path and query are dropped because they may contain keys.
pub fn origin(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}")
}

/// Allowed wait of the first prompt, in seconds.
const WAIT_S: std::ops::RangeInclusive<i64> = 0..=60;
/// Allowed time of a call without progress, in seconds.
const TIMEOUT_S: std::ops::RangeInclusive<i64> = 1..=3_600;

/// The fields of a server's table that determine how it is started or reached.
#[derive(Default)]
struct ServerFields {
    command: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    url: Option<String>,
    headers: BTreeMap<String, String>,
    key_variable: Option<String>,
    sandbox: bool,
    sandbox_network: Option<bool>,
}

impl ConfigReader<'_> {
    pub(super) fn mcp(&mut self, value: &TomlValue<'_>, mcp: &mut McpSettings) {
        let Some(table) = self.table(value, "mcp") else { return };
        fields!(self, table, key, value, {
            "wait_s" => {
                if !self.refused(key.span(), "mcp.wait_s") {
                    self.set(value, &mut mcp.wait, seconds(WAIT_S));
                }
            },
            "servers" => self.mcp_servers(value, &mut mcp.servers),
            "repository_variables" => {
                if !self.refused(key.span(), "mcp.repository_variables") {
                    self.repository_variables(value, &mut mcp.repository_variables);
                }
            },
        });
    }

    fn repository_variables(&mut self, value: &TomlValue<'_>, variables: &mut BTreeMap<String, Vec<String>>) {
        let Some(table) = self.table(value, "mcp.repository_variables") else { return };
        for (server, value) in self.entries(table, &[]) {
            self.enter(&server);
            let mut read = Vec::new();
            self.set(value, &mut read, names());
            variables.insert(server.get_ref().to_string(), read);
            self.leave();
        }
    }

    fn mcp_servers(&mut self, value: &TomlValue<'_>, servers: &mut Vec<McpServer>) {
        let Some(table) = self.table(value, "mcp.servers") else { return };
        for (name, value) in self.entries(table, &[]).into_iter().take(MCP_SERVERS_MAX) {
            let values = self.value_count();
            self.enter(&name);
            match self.mcp_server(&name, value) {
                Some(server) => {
                    if let FileOwner::Policy { .. } = self.owner {
                        servers.retain(|other| other.name != server.name);
                    }
                    servers.push(server);
                }
                None => self.unset(values),
            }
            self.leave();
            // If a name occurs twice, the first is used.
            if let Some((last, others)) = servers.split_last()
                && others.iter().any(|other| other.name == last.name)
            {
                let hint = "yours is the one that counts; give this one another name";
                let message = format!("there is an MCP server {:?} already", last.name);
                self.problem(name.span(), message, Some(hint.to_owned()));
                self.unset(values);
                servers.pop();
            }
        }
        if table.len() > MCP_SERVERS_MAX {
            let message = format!("only the first {MCP_SERVERS_MAX} MCP servers of a file are used");
            self.problem(value.span(), message, None);
        }
    }

    fn mcp_server(&mut self, name: &TomlKey<'_>, value: &TomlValue<'_>) -> Option<McpServer> {
        let before = self.problem_count();
        let table = self.table(value, "an MCP server")?;
        let mut fields = ServerFields::default();
        let (mut enabled, mut start_with_session) = (true, false);
        let (mut timeout, mut tools) = (MCP_TIMEOUT, None);
        fields!(self, table, key, value, {
            "command" => self.set(value, &mut fields.command, text()),
            "args" => self.set(value, &mut fields.args, arguments()),
            "env" => self.set(value, &mut fields.env, header_map()),
            "url" => self.set(value, &mut fields.url, url()),
            "headers" => self.set(value, &mut fields.headers, headers()),
            "key_variable" => self.set(value, &mut fields.key_variable, variable()),
            "enabled" => self.set(value, &mut enabled, truth()),
            "timeout_s" => self.set(value, &mut timeout, seconds(TIMEOUT_S)),
            "tools" => self.set(value, &mut tools, names()),
            "start_with_session" => self.set(value, &mut start_with_session, truth()),
            "sandbox" => self.set(value, &mut fields.sandbox, truth()),
            "sandbox_network" => self.set(value, &mut fields.sandbox_network, truth()),
        });
        // Without the invalid value, the server could differ from the intended one.
        if self.problem_count() > before {
            return None;
        }
        let from = match self.owner {
            FileOwner::User { .. } | FileOwner::Policy { .. } => McpSource::Person,
            FileOwner::Repository { .. } => {
                McpSource::Repository { file: self.path.to_path_buf(), digest: String::new() }
            }
        };
        let name_text = name.get_ref();
        match fields.way(name_text) {
            Ok((way, sandbox)) => {
                let server = McpServer::new(name_text.to_string(), from, way);
                Some(McpServer { enabled, timeout, tools, start_with_session, sandbox, ..server })
            }
            Err(ValueError { message, hint }) => {
                self.problem(name.span(), message, hint);
                None
            }
        }
    }
}

impl ServerFields {
    /// How the server is started or reached, and its sandbox.
    fn way(self, name: &str) -> Result<(McpTransport, Option<McpSandbox>), ValueError> {
        let ServerFields { command, args, env, url, headers, key_variable, sandbox, sandbox_network } = self;
        named(name)?;
        let error = |what: &str, hint: &str| {
            Err(ValueError::new(format!("the MCP server {name:?} {what}")).hint(hint))
        };
        let of_http = url.is_some() || !headers.is_empty() || key_variable.is_some();
        let way = match (command, url) {
            (Some(command), None) if !of_http && !command.trim().is_empty() => {
                McpTransport::Stdio { command, args, env: env.into_iter().collect() }
            }
            (None, Some(url)) if args.is_empty() && env.is_empty() => {
                McpTransport::Http { url, headers: headers.into_iter().collect(), key_variable }
            }
            _ => {
                let hint = "a process has command, args and env; a server on the network has url, headers and key_variable";
                return error("is neither a process nor a server on the network", hint);
            }
        };
        if let McpTransport::Http { .. } = way
            && (sandbox || sandbox_network.is_some())
        {
            return error(
                "is on the network, and only processes run in a sandbox",
                "take out `sandbox` and `sandbox_network`",
            );
        }
        if sandbox_network.is_some() && !sandbox {
            return error("has `sandbox_network` and no sandbox", "add `sandbox = true`");
        }
        Ok((way, sandbox.then_some(McpSandbox { network: sandbox_network })))
    }
}

pub(super) fn named(name: &str) -> Result<(), ValueError> {
    let fits =
        !name.trim().is_empty() && name.len() <= MCP_NAME_BYTES_MAX && !name.chars().any(char::is_control);
    match fits {
        true => Ok(()),
        false => Err(ValueError::new("an MCP server's name must be a short text on one line")
            .hint("for example [mcp.servers.tickets]")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_drops_parts_that_may_contain_keys() {
        for (url, expected) in [
            ("https://mcp.example/v1/sk-123?key=abc", "https://mcp.example"),
            ("http://ann:secret@localhost:8080/mcp", "http://localhost:8080"),
            ("https://mcp.example", "https://mcp.example"),
        ] {
            assert_eq!(origin(url), expected);
        }
    }

    /// The card of a repository's server said that it runs in the sandbox, but not that it had given itself the network
    /// there.
    #[test]
    fn the_card_of_a_server_shows_the_network_of_its_sandbox() {
        let stdio = McpTransport::Stdio { command: "x".into(), args: Vec::new(), env: Vec::new() };
        let mut server = McpServer::new("x".into(), McpSource::Person, stdio);
        for (sandbox, way) in [
            (None, "`x` runs"),
            (Some(None), "`x` runs in the sandbox of commands"),
            (Some(Some(true)), "`x` runs in the sandbox, but with access to the network"),
            (Some(Some(false)), "`x` runs in the sandbox without the network"),
        ] {
            server.sandbox = sandbox.map(|network| McpSandbox { network });
            assert_eq!(server.description(), format!("the MCP server {way}"));
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let stdio = McpTransport::Stdio {
            command: "server".into(),
            args: vec!["--key=sk-arg".into()],
            env: vec![("KEY".into(), "sk-env".into())],
        };
        let http = McpTransport::Http {
            url: "https://mcp.example/sk-path".into(),
            headers: vec![("Authorization".into(), "Bearer sk-header".into())],
            key_variable: None,
        };
        for way in [stdio, http] {
            let shown = format!("{:?}", McpServer::new("s".into(), McpSource::Client, way));
            assert!(!shown.contains("sk-"), "{shown}");
        }
    }
}
