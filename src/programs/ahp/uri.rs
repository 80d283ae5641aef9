//! The addresses of sessions and chats. Pure.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The scheme of the sessions that no client of this host has created.
const SESSION: &str = "ahp-session:/";

/// A session has one chat. VS Code computes the address of a session's default chat in this way.
const DEFAULT_CHAT: &str = "ahp-chat://default/";

/// Longest address that a client may choose, in bytes.
const URI_BYTES_MAX: usize = 512;

/// The address of a session of the daemon.
pub fn of_session(agent_id: &str) -> String {
    format!("{SESSION}{agent_id}")
}

/// The daemon's id of a session, from its address.
pub fn agent_id(session: &str) -> Option<&str> {
    session.strip_prefix(SESSION).filter(|id| id.starts_with("s_"))
}

pub fn of_chat(session: &str) -> String {
    format!("{DEFAULT_CHAT}{}", URL_SAFE_NO_PAD.encode(session))
}

/// The session of a chat, or the session itself.
pub fn session_of(channel: &str) -> Option<String> {
    match channel.strip_prefix(DEFAULT_CHAT) {
        Some(encoded) => String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok(),
        None if is_session(channel) => Some(channel.to_owned()),
        None => None,
    }
}

/// Whether a client may give a session this address. Clients use schemes of their own, but not those of other channels.
pub fn is_session(uri: &str) -> bool {
    let Some((scheme, path)) = uri.split_once(':') else { return false };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_reserved = scheme.starts_with("ahp-") && scheme != "ahp-session";
    is_scheme && !is_reserved && path.len() > 1 && uri.len() <= URI_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_names_its_session() {
        let session = of_session("s_0123");
        assert_eq!(session_of(&of_chat(&session)), Some(session.clone()));
        assert_eq!(session_of(&session), Some(session.clone()));
        assert_eq!(agent_id(&session), Some("s_0123"));
        assert_eq!(agent_id("ahp-session:/6ba7b810"), None, "an address that a client has chosen");
        assert_eq!(session_of("ahp-chat://default/%"), None);
    }

    #[test]
    fn a_client_chooses_the_address_of_a_session_but_not_of_another_channel() {
        for uri in ["ahp-session:/6ba7b810", "copilot:/6ba7b810"] {
            assert!(is_session(uri), "{uri}");
        }
        for uri in ["", "x", "ahp-root://", "ahp-chat://default/x", "ahp-terminal:/1", "a b:/1", "x:/"] {
            assert!(!is_session(uri), "{uri}");
        }
        assert!(!is_session(&format!("x:/{}", "y".repeat(URI_BYTES_MAX))));
    }
}
