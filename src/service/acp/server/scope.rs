//! The messages that clients with limited rights may send. Everything that is not listed here needs all rights.

use agent_client_protocol::v1::schema as wire;
use serde_json::Value;
use serde_json::value::RawValue;

use super::AcpServer;
use crate::answers;
use crate::from_wire::RequestParams;
use epitome_session_api::port::StoredSessionPort;
use epitome_session_api::{AccessGrant, AccessScope, SessionEvent};

/// Params of requests that open a session, with the scope that each needs. MCP servers are programs that the server
/// would run, and options include the permission mode.
const OPENING_PARAMS: [(&str, AccessScope); 4] = [
    ("mcpServers", AccessScope::Approve),
    ("configOptions", AccessScope::Approve),
    ("additionalDirectories", AccessScope::Prompt),
    ("systemPrompt", AccessScope::Prompt),
];

/// Characters of a method's name that an error repeats.
const METHOD_CHARS_MAX: usize = 80;

/// The scope that a message of a client needs. Closing a session does no more than a disconnect, and `$/cancel_request`
/// is for requests of the same client.
fn needed(method: &str) -> AccessScope {
    match method {
        "initialize" | "session/list" | "session/load" | "session/resume" | "session/status"
        | "session/close" | "$/cancel_request" => AccessScope::Read,
        "session/new" | "session/fork" | "session/options" | "session/prompt" | "session/cancel"
        | "_session/steering" | "tool_call/cancel" | "terminal/cancel" => AccessScope::Prompt,
        _ => AccessScope::Approve,
    }
}

/// Whether a client with this grant may do what needs this scope. The user has no grant, and all rights.
pub(super) fn allows(grant: Option<&AccessGrant>, scope: AccessScope) -> bool {
    grant.is_none_or(|grant| grant.scope >= scope)
}

impl<P: StoredSessionPort> AcpServer<P> {
    pub(super) fn has_scope(&self, scope: AccessScope) -> bool {
        allows(self.config.grant.as_deref(), scope)
    }

    /// Refuses a message that the client has no right to send.
    pub(super) fn check_scope(&self, method: &str, params: Option<&RawValue>) -> Result<(), wire::Error> {
        let Some(grant) = self.config.grant.as_deref() else { return Ok(()) };
        check(grant, method, params)
    }
}

fn check(grant: &AccessGrant, method: &str, params: Option<&RawValue>) -> Result<(), wire::Error> {
    let name: String = method.chars().take(METHOD_CHARS_MAX).collect();
    grant
        .check(&format!("`{name}`"), needed(method))
        .map_err(|error| answers::invalid_request(error.to_string()))?;
    let opens = ["session/new", "session/fork", "session/load", "session/resume", "session/options"];
    if !opens.contains(&method) {
        return Ok(());
    }
    let Ok(params) = RequestParams::read(params) else { return Ok(()) };
    // Params that can't be read are refused when the request is carried out.
    for directory in params.cwd().into_iter().chain(params.directories().into_iter().flatten()) {
        grant.check_directory(&directory).map_err(answers::invalid_request)?;
    }
    for (name, scope) in OPENING_PARAMS {
        let Some(given) = params.raw(name) else { continue };
        // Fails closed: a text that is no value here may be one for a more tolerant reader.
        let is_empty = serde_json::from_str::<Value>(given.get())
            .is_ok_and(|value| value.is_null() || value.as_array().is_some_and(Vec::is_empty));
        if !is_empty {
            grant
                .check(&format!("`{name}` of `{method}`"), scope)
                .map_err(|error| answers::invalid_request(error.to_string()))?;
        }
    }
    Ok(())
}

/// Returns the event that a client is sent instead of a question that it may not answer; `None` to send nothing.
pub(super) fn instead_of_question(out: SessionEvent, grant: Option<&AccessGrant>) -> Option<SessionEvent> {
    let may_answer = allows(grant, AccessScope::Approve);
    match out {
        SessionEvent::Ask { .. } if !may_answer => Some(SessionEvent::Notice {
            severity: epitome_session_api::NoticeSeverity::Info,
            text: "The agent waits for a permission, which needs somebody with the scope `approve`."
                .to_owned(),
        }),
        SessionEvent::Question { .. } if !may_answer => None,
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(scope: AccessScope, method: &str, params: &str) -> bool {
        let grant = AccessGrant { name: "laptop".to_owned(), scope, directories: Some(vec!["/".into()]) };
        let params = RawValue::from_string(params.to_owned()).expect("the test's JSON is valid");
        check(&grant, method, Some(&params)).is_err()
    }

    #[test]
    fn each_scope_allows_what_it_is_for_and_unknown_methods_need_the_highest() {
        let first_allowed =
            |method| AccessScope::ALL.into_iter().find(|scope| !refused(*scope, method, "{}"));
        for (method, scope) in [
            ("session/list", AccessScope::Read),
            ("session/load", AccessScope::Read),
            ("session/prompt", AccessScope::Prompt),
            ("session/cancel", AccessScope::Prompt),
            ("session/set_mode", AccessScope::Approve),
            ("providers/set", AccessScope::Approve),
            ("session/delete", AccessScope::Approve),
            ("session/of_the_future", AccessScope::Approve),
        ] {
            assert_eq!(first_allowed(method), Some(scope), "{method}");
        }
    }

    #[test]
    fn opening_a_session_gives_no_more_rights_than_the_scope() {
        let program = r#"{"mcpServers":[{"name":"a","command":"/bin/sh","args":[],"env":[]}]}"#;
        let options = r#"{"configOptions":[{"configId":"mode","value":"allow"}]}"#;
        // Regression: texts that only the reader of requests accepts were not seen here, and the program was started.
        let half_a_pair = r#"{"mcpServers":[{"name":"a","command":"/bin/sh","args":["\ud800"],"env":[]}]}"#;
        let too_large = r#"{"configOptions":[{"configId":"mode","value":"allow","x":1e999}]}"#;
        assert!(refused(AccessScope::Read, "session/load", half_a_pair));
        for params in [program, options, half_a_pair, too_large] {
            assert!(refused(AccessScope::Prompt, "session/new", params));
            assert!(!refused(AccessScope::Approve, "session/new", params));
        }
        let wider = r#"{"additionalDirectories":["/etc"],"mcpServers":[]}"#;
        assert!(refused(AccessScope::Read, "session/load", wider));
        assert!(!refused(AccessScope::Prompt, "session/load", wider));
        assert!(!refused(AccessScope::Read, "session/load", r#"{"mcpServers": [ ]}"#));
    }

    /// A client with the scope `prompt` chose any directory, in which the model read every file without a prompt.
    #[test]
    fn a_token_opens_sessions_in_its_directories_only() {
        let directories = Some(vec!["/usr".into()]);
        let allowed = |scope, directories: &Option<Vec<_>>, params: &str| {
            let grant = AccessGrant { name: "laptop".to_owned(), scope, directories: directories.clone() };
            let params = RawValue::from_string(params.to_owned()).expect("the test's JSON is valid");
            ["session/new", "session/fork", "session/load", "session/resume", "session/options"]
                .map(|method| check(&grant, method, Some(&params)).is_ok())
        };
        use AccessScope::{Approve, Prompt, Read};
        for (cwd, is_inside) in [("/usr", true), ("/usr/bin", true), ("/usr/../etc", false), ("/", false)] {
            let params = format!(r#"{{"cwd":"{cwd}"}}"#);
            assert_eq!(allowed(Prompt, &directories, &params), [is_inside; 5], "{cwd}");
            assert_eq!(allowed(Prompt, &None, &params), [false; 5], "a token of an earlier version");
            assert_eq!(allowed(Approve, &None, &params), [true; 5]);
            assert!(allowed(Read, &None, &params)[2]);
            assert_eq!(allowed(Read, &directories, &params)[2], is_inside);
        }
        assert!(!allowed(Prompt, &directories, r#"{"cwd":"/usr","additionalDirectories":["/etc"]}"#)[0]);
    }
}
