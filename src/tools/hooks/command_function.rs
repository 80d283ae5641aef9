//! Functions that the user configured as command lines. One gets the conversation as JSON on stdin and prints the
//! conversation that replaces it.

use super::functions::BoxError;
use super::normalise::ItemError;
use std::sync::Arc;

use serde_json::{Value, json};

use super::functions::{CallbackInput, CallbackOutput};
use super::hook::HookOrigin;
use super::normalise::utterance;
use super::process::{self, HookProgram, ProcessSpec};
use epitome_platform::reaper::Reaper;
use epitome_tools::Workspace;

/// Runs the command of a function. It has no time limit except the one of `limit`; dropping the future terminates it.
pub async fn call(
    line: String,
    input: CallbackInput,
    workspace: &Workspace,
    reaper: Arc<Reaper>,
    limit: std::time::Duration,
) -> Result<CallbackOutput, BoxError> {
    let messages =
        input.messages.iter().map(|message| json!({ "role": message.role, "content": message.text }));
    let payload = json!({ "callback_args": input.args, "messages": messages.collect::<Vec<Value>>() });
    let environment = HookOrigin::User.environment(workspace);
    let spec = ProcessSpec {
        program: HookProgram::Line(line),
        stdin: format!("{payload}\n").into_bytes(),
        cwd: workspace.cwd.clone(),
        environment: Arc::new(environment),
        more: Vec::new(),
        limit,
        reaper,
        sandbox: None,
    };
    Ok(output(&process::stdout_of(process::run(spec).await?)?)?)
}

/// Why what a function printed is not its result.
#[derive(Debug, thiserror::Error)]
enum PrintedError {
    #[error("it did not print one JSON object with `messages` or `text`")]
    NoObject,
    #[error("the `messages` that it printed are not a list")]
    NoList,
    #[error("the `text` that it printed is not text")]
    NoText,
    #[error("a message that it printed {0}")]
    Message(#[from] ItemError),
}

/// Reads what a function printed: nothing, or an object with `messages` or `text`, and `continue`. The result of a recipe
/// in kodelet's form has its text in `recipe_output`.
fn output(stdout: &[u8]) -> Result<CallbackOutput, PrintedError> {
    if stdout.trim_ascii().is_empty() {
        return Ok(CallbackOutput::default());
    }
    let printed: Value =
        serde_json::from_slice(stdout).ok().filter(Value::is_object).ok_or(PrintedError::NoObject)?;
    let messages = match &printed["messages"] {
        Value::Null => Vec::new(),
        Value::Array(messages) => messages.iter().map(utterance).collect::<Result<_, _>>()?,
        _ => return Err(PrintedError::NoList),
    };
    let text = match printed.get("text").unwrap_or(&printed["recipe_output"]) {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        _ => return Err(PrintedError::NoText),
    };
    Ok(CallbackOutput { text, messages, go_on: printed["continue"] == true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Utterance;
    use epitome_thread::Role;

    #[test]
    fn a_function_prints_nothing_or_a_new_history() {
        let read = |text: &str| output(text.as_bytes());
        assert_eq!(read("\n").expect("nothing"), CallbackOutput::default());
        let message = Utterance { role: Role::Assistant, text: "a".to_owned() };
        let printed = r#"{"messages": [{"role": "assistant", "content": "a"}], "continue": true}"#;
        assert_eq!(
            read(printed).expect("an object"),
            CallbackOutput { messages: vec![message], go_on: true, ..CallbackOutput::default() }
        );
        let printed = r#"{"recipe_output": "a", "messages": [], "continue": false}"#;
        let text = "a".to_owned();
        assert_eq!(read(printed).expect("an object"), CallbackOutput { text, ..CallbackOutput::default() });
        for (printed, why) in [
            ("[1]", "it did not print one JSON object"),
            ("redacted", "it did not print one JSON object"),
            (r#"{"messages": "a"}"#, "are not a list"),
            (r#"{"messages": [{"role": "tool", "content": "a"}]}"#, "has the role \"tool\""),
            (r#"{"text": 1}"#, "is not text"),
        ] {
            assert!(read(printed).is_err_and(|error| error.to_string().contains(why)), "{printed}");
        }
    }
}
