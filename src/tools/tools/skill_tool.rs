//! `skill`: returns the text of a skill, a directory with instructions for one kind of task. Calls that follow from
//! the text need the same permissions as all others. So do the commands in the text: the call is decided about like a
//! command line with all of them, and runs no others.

use std::fmt;
use std::future::ready;
use std::sync::Arc;

use serde_json::Value;

use super::bash::outside_note;
use super::git_commands::changes_repository;
use super::listing::{self, ListedItem};
use super::schema::{self, InputKey};
use super::task::{self, TaskRequest};
use super::{
    Access, BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, disk, input, truncate,
};
use epitome_thread::titles::name_in_title;
use epitome_thread::{CallDisplay, ToolDisplay, ToolKind, ToolSpec};

pub const NAME: &str = "skill";
const NAMES_BYTES_MAX: usize = 6 * 1024;
const TITLE_BYTES_MAX: usize = 200;
/// Follows the text of a skill after a command of it failed in the sandbox.
const SANDBOX_HINT: &str = "[The skill's own commands ran in the sandbox. If it stopped one, call the skill again with \
                    `outside_sandbox`.]";

/// A skill that the session can offer.
#[derive(Clone, Debug)]
pub struct Skill {
    pub name: String,
    /// Its purpose, and when to use it.
    pub about: String,
    /// Whether it is in the list; an unlisted skill can be called by its name.
    pub is_listed: bool,
    /// The agent that runs it instead of the current conversation.
    pub fork: Option<String>,
    pub text: Arc<dyn SkillText>,
}

/// The instructions of a skill. Errors are sentences for the model.
pub trait SkillText: Send + Sync {
    /// The command lines that the text needs with these arguments and may run now. Blocks on disk I/O.
    fn lines(&self, arguments: &str) -> Result<Vec<String>, ToolError>;

    /// Renders the text. Of its commands, only these lines run, in the sandbox of the call.
    fn render(
        &self,
        context: ToolContext,
        arguments: String,
        lines: Vec<String>,
    ) -> BoxFuture<Result<String, ToolError>>;
}

impl fmt::Debug for dyn SkillText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SkillText").finish_non_exhaustive()
    }
}

pub struct SkillTool {
    skills: Vec<Skill>,
    list_bytes_max: usize,
}

impl SkillTool {
    /// `list_bytes_max` is the maximum size in bytes of the list in the tool's description.
    pub fn new(skills: Vec<Skill>, list_bytes_max: usize) -> SkillTool {
        SkillTool { skills, list_bytes_max }
    }

    fn find(&self, name: &str) -> Result<&Skill, ToolError> {
        let wanted = name.trim().trim_start_matches('/');
        self.skills.iter().find(|skill| skill.name == wanted).ok_or_else(|| {
            let names: Vec<&str> = self.skills.iter().map(|skill| skill.name.as_str()).collect();
            let names = truncate::line(&names.join(", "), NAMES_BYTES_MAX);
            ToolError::new(match self.skills.is_empty() {
                true => format!("There is no skill {name:?}; there are no skills now."),
                false => format!("There is no skill {name:?}. The skills are {names}."),
            })
        })
    }
}

/// A call of a skill.
#[derive(Debug)]
pub struct SkillCall {
    skill: Skill,
    arguments: String,
    /// The reason for running its commands outside of the sandbox, if requested.
    outside: Option<String>,
}

impl SkillCall {
    /// The command lines that the call runs now, and its access.
    fn lines(&self) -> Result<(Vec<String>, Access), ToolError> {
        let lines = self.skill.text.lines(&self.arguments)?;
        let line = lines.join("\n");
        let (changes_git, confined) = (changes_repository(&line), self.outside.is_none());
        let access = match lines.is_empty() {
            true => Access::Nothing,
            false => Access::Command { line, confined, changes_git },
        };
        Ok((lines, access))
    }
}

/// Returns a skill as an entry of the list.
pub fn item(skill: &Skill) -> ListedItem<'_> {
    ListedItem { name: &skill.name, about: &skill.about }
}

impl ParsedTool for SkillTool {
    type Call = SkillCall;

    fn spec(&self) -> ToolSpec {
        let items: Vec<ListedItem<'_>> =
            self.skills.iter().filter(|skill| skill.is_listed).map(item).collect();
        let list = listing::lines(&items, self.list_bytes_max);
        let description = format!(
            "Returns the instructions of a skill, which the user or the project wrote for one kind of \
             task. If a skill fits a task, get it first and follow it. The skills:{list}"
        );
        let outside = "Asks the user to run the skill's own commands outside the sandbox. Only if the sandbox stopped \
                       them; requires `reason`.";
        schema::spec(
            NAME,
            description,
            [
                InputKey::text("name", "The skill's name as it is listed.").required(),
                InputKey::text("arguments", "What the skill is to work on, if it takes that."),
                InputKey::flag("outside_sandbox", outside),
                InputKey::text("reason", "Why they need to run outside the sandbox, for the user."),
            ],
        )
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        let lines = self.parse(input, workspace).and_then(|call| call.skill.text.lines(&call.arguments));
        let kind =
            if lines.is_ok_and(|lines| !lines.is_empty()) { ToolKind::Execute } else { ToolKind::Read };
        let name = input.get("name").and_then(Value::as_str).unwrap_or_default().trim();
        let title = match name.is_empty() {
            true => "Use a skill".to_owned(),
            false => {
                let name = truncate::line(&name.replace('\n', " "), TITLE_BYTES_MAX);
                format!("Use the skill {}", name_in_title(kind, &name))
            }
        };
        CallDisplay { title, kind, locations: Vec::new() }
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<SkillCall, ToolError> {
        let skill = self.find(&input::named(input, "name")?)?.clone();
        let arguments = input::optional_named(input, "arguments")?.unwrap_or_default();
        Ok(SkillCall { skill, arguments, outside: input::outside_sandbox(input)? })
    }

    fn access(&self, call: SkillCall, _: &Workspace) -> Result<Access, ToolError> {
        Ok(call.lines()?.1)
    }

    fn preview(&self, call: SkillCall, _: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        let Ok((lines, Access::Command { line, .. })) = call.lines() else {
            return Box::pin(ready(Vec::new()));
        };
        let count = if lines.len() == 1 { "This command runs" } else { "These commands run" };
        let mut text = format!("{count} to prepare the skill's text:\n\n{}", disk::fenced("sh", &line));
        if let Some(reason) = &call.outside {
            text.push_str(&format!("\n\n{}", outside_note("they", reason)));
        }
        Box::pin(ready(vec![ToolDisplay::Text { text }]))
    }

    fn rule_names(&self, input: &Value) -> Vec<(&'static str, String)> {
        let skill = input::named(input, "name").and_then(|name| self.find(&name));
        let of = |skill: &Skill| {
            let agent = skill.fork.clone().map(|agent| (task::NAME, agent));
            [Some((NAME, skill.name.clone())), agent].into_iter().flatten().collect()
        };
        skill.map(of).unwrap_or_default()
    }

    fn agent_request(&self, input: &Value) -> Option<TaskRequest> {
        let skill = self.find(&input::named(input, "name").ok()?).ok()?;
        Some(request(skill, skill.fork.clone()?, String::new()))
    }

    fn run(&self, call: SkillCall, context: ToolContext) -> BoxFuture<ToolResult> {
        Box::pin(async move {
            // Files may have changed since the call was decided about, so everything is determined again.
            let (now, SkillCall { skill, arguments, .. }) =
                disk::blocking(move |_| (call.lines(), call)).await;
            let (lines, access) = match now {
                Ok(now) => now,
                Err(why) => return ToolResult::failed(why),
            };
            if !lines.is_empty() && context.decided.as_deref() != Some(&access) {
                return ToolResult::failed(
                    "The skill's commands changed after the call was checked. None ran.",
                );
            }
            let is_sandboxed = !lines.is_empty() && context.sandbox.applies_in(context.mode);
            let text = skill.text.render(context.clone(), arguments, lines).await;
            match (text, skill.fork.clone()) {
                (Ok(text), Some(agent)) => task::start(request(&skill, agent, text), context).await,
                (Ok(mut text), None) => {
                    if is_sandboxed && text.contains("[exit code ") {
                        text.push_str(&format!("\n\n{SANDBOX_HINT}"));
                    }
                    let shown = vec![ToolDisplay::Text { text: disk::fenced("markdown", &text) }];
                    ToolResult { shown, ..ToolResult::completed(text) }
                }
                (Err(why), _) => ToolResult::failed(why),
            }
        })
    }
}

fn request(skill: &Skill, agent: String, prompt: String) -> TaskRequest {
    let description = format!("the skill {}", skill.name);
    TaskRequest { description, prompt, agent: Some(agent), model: None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A text with its commands, which changes nothing else.
    struct WrittenSkill(String, Vec<String>);

    impl SkillText for WrittenSkill {
        fn lines(&self, _: &str) -> Result<Vec<String>, ToolError> {
            Ok(self.1.clone())
        }

        fn render(&self, _: ToolContext, _: String, _: Vec<String>) -> BoxFuture<Result<String, ToolError>> {
            Box::pin(ready(Ok(self.0.clone())))
        }
    }

    fn skill(name: &str, about: &str) -> Skill {
        let text = Arc::new(WrittenSkill(format!("Do {name}."), Vec::new()));
        Skill { name: name.to_owned(), about: about.to_owned(), is_listed: true, fork: None, text }
    }

    /// The call accessed nothing in the eyes of modes and rules, and its commands ran nevertheless.
    #[tokio::test]
    async fn a_skill_with_commands_is_decided_about_as_these_commands() {
        let text =
            Arc::new(WrittenSkill("Do it.".to_owned(), vec!["git commit".to_owned(), "ls".to_owned()]));
        let tool = SkillTool::new(vec![Skill { text, ..skill("ci", "") }], 6_000);
        let workspace = Arc::new(Workspace::new("/w", Vec::new(), Default::default()));
        let parse = |input| tool.parse(&input, &workspace).expect("a call");
        let access = tool.access(parse(json!({"name": "ci"})), &workspace);
        let line = "git commit\nls".to_owned();
        assert_eq!(access, Ok(Access::Command { line: line.clone(), confined: true, changes_git: true }));
        let outside = json!({"name": "ci", "outside_sandbox": true, "reason": "gh needs the network"});
        let access = tool.access(parse(outside), &workspace);
        assert_eq!(access, Ok(Access::Command { line, confined: false, changes_git: true }));
        assert_eq!(tool.display(&json!({"name": "ci"}), &workspace).kind, ToolKind::Execute);
        // It needed no decision.
        let result = tool.run(parse(json!({"name": "ci"})), ToolContext::bare(workspace.clone())).await;
        assert_eq!(result.status, epitome_thread::OutcomeStatus::Failed);
    }

    #[test]
    fn the_description_lists_skills() {
        let few =
            SkillTool::new(vec![skill("pdf", "Fills\n  forms."), skill("logs", "Reads logs.")], 6_000).spec();
        assert!(
            few.description.ends_with("The skills:\n- pdf: Fills forms.\n- logs: Reads logs."),
            "{}",
            few.description
        );
    }

    #[tokio::test]
    async fn skill_is_found_by_name_and_errors_list_the_names() {
        let tool = SkillTool::new(vec![skill("pdf", ""), skill("logs", "")], 6_000);
        let workspace = Workspace::new("/w", Vec::new(), Default::default());
        let skill = |name| tool.parse(&json!({"name": name}), &workspace);
        assert_eq!(skill("/pdf").map(|call| call.skill.name).as_deref(), Ok("pdf"));
        let why = skill("csv").expect_err("there is none");
        assert_eq!(why.to_string(), "There is no skill \"csv\". The skills are pdf, logs.");
        let logs = skill("logs").expect("a skill");
        let result = tool.run(logs, ToolContext::bare(workspace.into())).await;
        assert_eq!(result.content, ToolResult::completed("Do logs.").content);
    }
}
