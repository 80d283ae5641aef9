//! `skill`: returns the text of a skill, a directory with instructions for one kind of task. Calls that follow from
//! the text need the same permissions as all others.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use super::listing::{self, ListedItem};
use super::task::{self, TaskOrder};
use super::{BoxFuture, ParsedTool, ToolContext, ToolResult, Workspace, disk, input, truncate};
use epitome_thread::titles::name_in_title;
use epitome_thread::{CallDisplay, ToolDisplay, ToolKind, ToolSpec};

pub const NAME: &str = "skill";

/// Maximum bytes of the names listed in an error.
const NAMES_BYTES_MAX: usize = 6 * 1024;
/// Maximum bytes of a skill's name in the title of a card.
const TITLE_BYTES_MAX: usize = 200;

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
    pub text: SkillText,
}

/// Renders the instructions of a skill on request, with the arguments after its name. The error is a sentence for the
/// model.
#[derive(Clone)]
pub struct SkillText(Arc<MakeText>);

type MakeText = dyn Fn(ToolContext, String) -> BoxFuture<Result<String, String>> + Send + Sync;

impl SkillText {
    pub fn new(
        make: impl Fn(ToolContext, String) -> BoxFuture<Result<String, String>> + Send + Sync + 'static,
    ) -> SkillText {
        SkillText(Arc::new(make))
    }
}

impl fmt::Debug for SkillText {
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

    fn find(&self, name: &str) -> Result<&Skill, String> {
        let wanted = name.trim().trim_start_matches('/');
        self.skills.iter().find(|skill| skill.name == wanted).ok_or_else(|| {
            let names: Vec<&str> = self.skills.iter().map(|skill| skill.name.as_str()).collect();
            let names = truncate::line(&names.join(", "), NAMES_BYTES_MAX);
            match self.skills.is_empty() {
                true => format!("There is no skill {name:?}; there are no skills now."),
                false => format!("There is no skill {name:?}. The skills are {names}."),
            }
        })
    }
}

/// A call of a skill.
#[derive(Debug)]
pub struct SkillCall {
    skill: Skill,
    arguments: String,
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
        ToolSpec {
            name: NAME.to_string(),
            description: format!(
                "Returns the instructions of a skill, which the user or the project wrote for one kind of \
                 task. If a skill fits a task, get it first and follow it. The skills:{list}"
            ),
            schema: json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "The skill's name as it is listed."},
                    "arguments": {"type": "string", "description": "What the skill is to work on, if it takes that."}
                },
                "required": ["name"]
            }),
        }
    }

    fn display(&self, input: &Value, _: &Workspace) -> CallDisplay {
        let kind = ToolKind::Read;
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

    fn parse(&self, input: &Value, _: &Workspace) -> Result<SkillCall, String> {
        let skill = self.find(&input::named(input, "name")?)?.clone();
        Ok(SkillCall { skill, arguments: input::optional_named(input, "arguments")?.unwrap_or_default() })
    }

    fn agent_order(&self, input: &Value) -> Option<TaskOrder> {
        let skill = self.find(&input::named(input, "name").ok()?).ok()?;
        Some(order(skill, skill.fork.clone()?, String::new()))
    }

    fn run(&self, call: SkillCall, context: ToolContext) -> BoxFuture<ToolResult> {
        let SkillCall { skill, arguments } = call;
        let text = (skill.text.0)(context.clone(), arguments);
        Box::pin(async move {
            match (text.await, skill.fork.clone()) {
                (Ok(text), Some(agent)) => task::start(order(&skill, agent, text), context).await,
                (Ok(text), None) => {
                    let shown = vec![ToolDisplay::Text { text: disk::fenced("markdown", &text) }];
                    ToolResult { shown, ..ToolResult::completed(text) }
                }
                (Err(why), _) => ToolResult::failed(why),
            }
        })
    }
}

/// Returns the task of a skill's agent.
fn order(skill: &Skill, agent: String, prompt: String) -> TaskOrder {
    let description = format!("the skill {}", skill.name);
    TaskOrder { description, prompt, agent: Some(agent), model: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(name: &str, about: &str) -> Skill {
        let text = format!("Do {name}.");
        let text = SkillText::new(move |_, _| {
            let text = text.clone();
            Box::pin(async move { Ok(text) })
        });
        Skill { name: name.to_owned(), about: about.to_owned(), is_listed: true, fork: None, text }
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
        assert_eq!(why, "There is no skill \"csv\". The skills are pdf, logs.");
        let logs = skill("logs").expect("a skill");
        let result = tool.run(logs, ToolContext::bare(workspace.into())).await;
        assert_eq!(result.content, ToolResult::completed("Do logs.").content);
    }
}
