//! Resources of servers that the user attaches to a prompt: a link with a server-specific scheme, or `@SERVER:URI` in
//! the text, as in Claude Code.

use std::sync::Arc;

use super::Hub;
use super::server::ServerHandle;
use epitome_thread::{Content, OutcomeContent};

/// Maximum resources per prompt.
const RESOURCES_MAX: usize = 16;
/// Common schemes, which never belong to a server.
const COMMON_SCHEMES: [&str; 5] = ["file:", "http:", "https:", "data:", "zed:"];

/// A prompt whose resources have not been fetched yet.
pub struct AttachedResources {
    content: Vec<Content>,
    wanted: Vec<WantedResource>,
}

struct WantedResource {
    uri: String,
    /// Index of the part of the prompt that the resource replaces; without one, the resource is appended.
    part: Option<usize>,
    /// Servers that may have the resource.
    servers: Vec<Arc<ServerHandle>>,
}

impl Hub {
    /// Returns the prompt with the resources to fetch for it; `None` if it refers to no resource of a server.
    pub fn attached(&self, content: &[Content]) -> Option<AttachedResources> {
        let is_there = |uri: &str| {
            content.iter().any(|part| match part {
                Content::Resource { uri: known, .. } | Content::Image { uri: Some(known), .. } => {
                    known == uri
                }
                _ => false,
            })
        };
        let with_resources: Vec<Arc<ServerHandle>> =
            self.handles().filter(|server| server.listing().has_resources).cloned().collect();
        let named = |name: &str| {
            with_resources.iter().filter(|server| server.spec.name == name).cloned().collect::<Vec<_>>()
        };
        let mut wanted: Vec<WantedResource> = Vec::new();
        for (at, part) in content.iter().enumerate() {
            match part {
                Content::ResourceLink { uri, .. } if is_of_server(uri) => {
                    wanted.push(WantedResource {
                        uri: uri.clone(),
                        part: Some(at),
                        servers: with_resources.clone(),
                    });
                }
                Content::Text { text } => {
                    let uris = mentions(text).filter(|(_, uri)| !is_there(uri));
                    wanted.extend(uris.map(|(server, uri)| WantedResource {
                        uri: uri.to_owned(),
                        part: None,
                        servers: named(server),
                    }));
                }
                _ => {}
            }
        }
        wanted.retain(|resource| !resource.servers.is_empty());
        wanted.truncate(RESOURCES_MAX);
        (!wanted.is_empty()).then(|| AttachedResources { content: content.to_vec(), wanted })
    }
}

impl AttachedResources {
    /// Fetches the resources and returns the complete prompt. A resource that can't be read is replaced by an error
    /// message.
    pub async fn fetch(self) -> Vec<Content> {
        let AttachedResources { content, wanted } = self;
        let mut parts: Vec<Vec<Content>> = content.into_iter().map(|part| vec![part]).collect();
        let mut last = Vec::new();
        for WantedResource { uri, part, servers } in wanted {
            let read = read(&uri, &servers).await;
            match part.and_then(|at| parts.get_mut(at)) {
                Some(part) => *part = read,
                None => last.extend(read),
            }
        }
        parts.into_iter().flatten().chain(last).collect()
    }
}

/// Reads a resource from the first server that has it.
async fn read(uri: &str, servers: &[Arc<ServerHandle>]) -> Vec<Content> {
    let mut why = "no MCP server is connected".to_owned();
    for server in servers {
        match server.read_resource(uri).await {
            Ok(read) => return read.content.into_iter().filter_map(|part| as_attached(uri, part)).collect(),
            Err(error) => why = error.to_string(),
        }
    }
    vec![Content::Resource { uri: uri.to_owned(), text: format!("[It could not be read: {why}]") }]
}

fn as_attached(uri: &str, part: OutcomeContent) -> Option<Content> {
    let uri = uri.to_owned();
    match part {
        OutcomeContent::Text { text } => Some(Content::Resource { uri, text }),
        OutcomeContent::Image { mime_type, data } => Some(Content::Image { mime_type, data, uri: Some(uri) }),
        OutcomeContent::Document { .. } => None,
    }
}

fn is_of_server(uri: &str) -> bool {
    uri.contains("://") && !COMMON_SCHEMES.iter().any(|scheme| uri.starts_with(scheme))
}

/// The server and URI of each `@SERVER:URI` in the text.
fn mentions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split_whitespace().filter_map(|word| {
        let (server, uri) = word.strip_prefix('@')?.split_once(':')?;
        let uri = uri.trim_end_matches(['.', ',', ';', ')', '?', '!']);
        uri.contains("://").then_some((server, uri))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_named_by_server_and_address() {
        let found: Vec<_> =
            mentions("See @docs:docs://readme, (mail me@x.example) and @a:b @db:pg://t/1?").collect();
        assert_eq!(found, [("docs", "docs://readme"), ("db", "pg://t/1")]);
        for (uri, is_own) in [("docs://x", true), ("file:///x", false), ("https://x", false), ("x", false)] {
            assert_eq!(is_of_server(uri), is_own, "{uri}");
        }
    }
}
