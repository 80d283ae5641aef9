//! Prompts and servers in the forms of the protocol. Pure, except that programs are looked for.

use std::env;
use std::path::{Path, PathBuf};

use agent_client_protocol::v2::schema as wire;

use epitome_acp::updates::{prompt_block, wire_path};
use epitome_session_api::{McpServer, McpTransport};
use epitome_thread::Content;

/// The blocks of a prompt. Content that only a model writes has none.
pub fn of_prompt(content: &[Content]) -> Vec<wire::ContentBlock> {
    // A document without a name has none for the agent either.
    content.iter().filter_map(|content| prompt_block(content, "")).collect()
}

/// A server of the client. The protocol wants absolute paths of programs, so those of PATH are looked for here.
pub fn of_server(server: &McpServer, cwd: &Path) -> wire::McpServer {
    let name = server.name.as_str();
    match &server.way {
        McpTransport::Stdio { command, args, env } => {
            let env = env.iter().map(|(name, value)| wire::EnvVariable::new(name, value)).collect();
            let server = wire::McpServerStdio::new(name, wire_path(&found(command, cwd)));
            wire::McpServer::Stdio(server.args(args.clone()).env(env))
        }
        McpTransport::Http { url, headers, .. } => {
            let headers = headers.iter().map(|(name, value)| wire::HttpHeader::new(name, value)).collect();
            wire::McpServer::Http(wire::McpServerHttp::new(name, url).headers(headers))
        }
        McpTransport::Client { id } => wire::McpServer::Acp(wire::McpServerAcp::new(name, id.as_str())),
    }
}

fn found(command: &str, cwd: &Path) -> PathBuf {
    let is_name = !command.contains('/');
    let directories = env::var_os("PATH").filter(|_| is_name).unwrap_or_default();
    let mut candidates = env::split_paths(&directories).map(|directory| cwd.join(directory).join(command));
    // A program that is not found anywhere is named when the server is started.
    candidates.find(|path| path.is_file()).unwrap_or_else(|| cwd.join(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_keeps_its_name() {
        let document = |name: Option<&str>| Content::Document {
            mime_type: "application/pdf".to_owned(),
            data: "JVBERi0xLjcK".to_owned(),
            name: name.map(str::to_owned),
        };
        let uri = |name| {
            let blocks = serde_json::to_value(of_prompt(&[document(name)])).expect("JSON");
            blocks[0]["resource"]["uri"].as_str().map(str::to_owned)
        };
        assert_eq!(uri(Some("My Plan.pdf")).as_deref(), Some("attachment:///My%20Plan.pdf"));
        assert_eq!(uri(None).as_deref(), Some("attachment:///"));
    }

    #[test]
    fn programs_of_servers_have_absolute_paths() {
        let cwd = Path::new("/nowhere");
        assert_eq!(found("/bin/sh", cwd), Path::new("/bin/sh"));
        assert!(found("sh", cwd).is_absolute() && found("sh", cwd).is_file());
        assert_eq!(found("./server", cwd), Path::new("/nowhere/./server"));
        assert_eq!(found("no-such-program", cwd), Path::new("/nowhere/no-such-program"));
    }
}
