//! `skill`: returns the text of a skill, a folder with instructions for one kind of task. Text only: it
//! executes nothing, and calls that follow from the text need the same permissions as all others.

use std::future::ready;

use serde_json::{Value, json};

use super::{BoxFuture, ParsedTool, ToolContext, ToolResult, Workspace, disk, input, truncate};
use epitome_thread::titles::name_in_title;
use epitome_thread::{CallDisplay, ToolDisplay, ToolKind, ToolSpec};

pub const NAME: &str = "skill";

/// Bytes of the skill list in the tool's description, which is part of every request.
const LIST_BYTES_MAX: usize = 6 * 1024;

/// Bytes of one skill's description in the list; two sentences are usually enough.
const ABOUT_BYTES_MAX: usize = 400;

/// A skill that the session can offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    pub name: String,
    /// What it is for, and when to use it.
    pub about: String,
    /// The instructions, including the directory of the files that they mention.
    pub text: String,
}

pub struct SkillTool {
    skills: Vec<Skill>,
}

impl SkillTool {
    pub fn new(skills: Vec<Skill>) -> SkillTool {
        SkillTool { skills }
    }

    fn find(&self, name: &str) -> Result<&Skill, String> {
        let wanted = name.trim().trim_start_matches('/');
        self.skills.iter().find(|skill| skill.name == wanted).ok_or_else(|| {
            let names: Vec<&str> = self.skills.iter().map(|skill| skill.name.as_str()).collect();
            let names = truncate::line(&names.join(", "), LIST_BYTES_MAX);
            match self.skills.is_empty() {
                true => format!("There is no skill {name:?}, and no other now."),
                false => format!("There is no skill {name:?}. The skills are {names}."),
            }
        })
    }
}

/// The list entry of a skill; it begins with `head`.
pub fn line(skill: &Skill) -> String {
    let about = skill.about.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{}{}", head(&skill.name), truncate::line(&about, ABOUT_BYTES_MAX))
}

/// The start of a skill's list entry, which identifies the skill.
pub fn head(name: &str) -> String {
    format!("- {name}: ")
}

impl ParsedTool for SkillTool {
    type Call = Skill;

    fn spec(&self) -> ToolSpec {
        let mut list = String::new();
        for (at, skill) in self.skills.iter().enumerate() {
            let line = line(skill);
            if list.len() + line.len() > LIST_BYTES_MAX {
                let names: Vec<&str> = self.skills[at..].iter().map(|skill| skill.name.as_str()).collect();
                let names = truncate::line(&names.join(", "), LIST_BYTES_MAX);
                list.push_str(&format!("\nand, without room for what they are for: {names}"));
                break;
            }
            list.push('\n');
            list.push_str(&line);
        }
        ToolSpec {
            name: NAME.to_string(),
            description: format!(
                "Gives you the instructions of a skill, which the user or the project keeps for one kind of work. Where \
                 a task is what a skill is for, get it first and follow it. The skills:{list}"
            ),
            schema: json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "The skill's name as it is listed."}
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
                let name = truncate::line(&name.replace('\n', " "), ABOUT_BYTES_MAX);
                format!("Use the skill {}", name_in_title(kind, &name))
            }
        };
        CallDisplay { title, kind, locations: Vec::new() }
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<Skill, String> {
        self.find(&input::named(input, "name")?).cloned()
    }

    fn run(&self, skill: Skill, _: ToolContext) -> BoxFuture<ToolResult> {
        let shown = vec![ToolDisplay::Text { text: disk::fenced("markdown", &skill.text) }];
        Box::pin(ready(ToolResult { shown, ..ToolResult::completed(skill.text) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(name: &str, about: &str) -> Skill {
        Skill { name: name.to_owned(), about: about.to_owned(), text: format!("Do {name}.") }
    }

    #[test]
    fn the_description_lists_skills_within_its_bounds() {
        let few = SkillTool::new(vec![skill("pdf", "Fills\n  forms."), skill("logs", "Reads logs.")]).spec();
        assert!(
            few.description.ends_with("The skills:\n- pdf: Fills forms.\n- logs: Reads logs."),
            "{}",
            few.description
        );
        let many = (0..500).map(|number| skill(&format!("s{number}"), &"long ".repeat(200)));
        let many = SkillTool::new(many.collect()).spec().description;
        assert!(
            many.len() < 3 * LIST_BYTES_MAX && many.contains("without room") && many.contains("s499"),
            "{many}"
        );
    }

    #[tokio::test]
    async fn skill_is_found_by_name_and_errors_list_the_names() {
        let tool = SkillTool::new(vec![skill("pdf", ""), skill("logs", "")]);
        let workspace = Workspace::new("/w", Vec::new(), Default::default());
        let skill = |name| tool.parse(&json!({"name": name}), &workspace);
        assert_eq!(skill("/pdf").map(|skill| skill.name).as_deref(), Ok("pdf"));
        let why = skill("csv").expect_err("there is none");
        assert_eq!(why, "There is no skill \"csv\". The skills are pdf, logs.");
        let logs = skill("logs").expect("a skill");
        let result = tool.run(logs, ToolContext::bare(workspace.into())).await;
        assert_eq!(result.content, ToolResult::completed("Do logs.").content);
    }
}
