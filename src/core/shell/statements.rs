//! A command line as the statements that run one after another.

use tree_sitter::Node;

use super::word::{LITERAL, UNKNOWN, literal};
use super::{children, parse};

/// Maximum size of a line in bytes. Longer ones are files in here-documents.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// A part of a line that ends with a line break, `;` or `&`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellStatement {
    pub pipelines: Vec<Pipeline>,
    /// Whether the shell doesn't wait for it (`&`).
    pub is_background: bool,
}

/// Commands that are connected by `|`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    pub joint: Joint,
    pub commands: Vec<ShellCommand>,
    /// Whether its status is inverted (`!`).
    pub is_negated: bool,
}

/// When a pipeline runs, depending on the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joint {
    /// It is the first.
    First,
    And,
    Or,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellCommand {
    /// As it is written, its words separated by single spaces, without redirections.
    pub text: String,
    /// The program and its arguments, as the program receives them. Empty for a compound command, such as a loop.
    pub words: Vec<String>,
    /// The files that its output is redirected to.
    pub writes: Vec<String>,
    /// Its here-document.
    pub document: Option<String>,
    /// The simple commands in a compound command.
    pub inner: Vec<ShellCommand>,
}

impl ShellCommand {
    /// The command and those within it.
    pub fn all(&self) -> impl Iterator<Item = &ShellCommand> {
        std::iter::once(self).chain(&self.inner)
    }
}

/// Returns the statements of a line; `None` if it can't be parsed.
pub fn statements(line: &str) -> Option<Vec<ShellStatement>> {
    let tree = parse(line.get(..LINE_BYTES_MAX).unwrap_or(line))?;
    let root = tree.root_node();
    if line.len() > LINE_BYTES_MAX || root.has_error() {
        return None;
    }
    let mut statements: Vec<ShellStatement> = Vec::new();
    for node in children(root) {
        match (node.kind(), statements.last_mut()) {
            ("&", Some(last)) => last.is_background = true,
            _ if node.is_named() && !node.is_extra() => {
                let mut statement = ShellStatement::default();
                add(node, Joint::First, line, &mut statement.pipelines);
                statements.push(statement);
            }
            _ => {}
        }
    }
    Some(statements)
}

/// Adds the pipelines of a statement.
fn add(node: Node<'_>, joint: Joint, line: &str, pipelines: &mut Vec<Pipeline>) {
    match node.kind() {
        "list" => {
            let mut joint = joint;
            for part in children(node) {
                match part.kind() {
                    "&&" => joint = Joint::And,
                    "||" => joint = Joint::Or,
                    _ => add(part, joint, line, pipelines),
                }
            }
        }
        "redirected_statement" => {
            let body = node.child_by_field_name("body");
            match body {
                Some(body) => add(body, joint, line, pipelines),
                None => pipelines.push(Pipeline::of(joint, ShellCommand::default())),
            }
            for redirect in children(node).into_iter().filter(|part| Some(*part) != body) {
                add_redirect(redirect, line, pipelines);
            }
        }
        "pipeline" => {
            let mut parts = children(node).into_iter().filter(Node::is_named);
            parts.next().into_iter().for_each(|first| add(first, joint, line, pipelines));
            parts.for_each(|part| add_piped(part, line, pipelines));
        }
        "negated_command" => {
            let from = pipelines.len();
            children(node)
                .into_iter()
                .filter(Node::is_named)
                .for_each(|part| add(part, joint, line, pipelines));
            pipelines[from..].iter_mut().for_each(|pipeline| pipeline.is_negated = true);
        }
        _ => pipelines.push(Pipeline::of(joint, command(node, line))),
    }
}

/// Adds a command that reads the output of the newest one. If that has a redirection, the grammar takes a list before it
/// for one command: in `a && b 2>&1 | c`, only `b` writes to `c`.
fn add_piped(part: Node<'_>, line: &str, pipelines: &mut Vec<Pipeline>) {
    let mut added = Vec::new();
    add(part, Joint::And, line, &mut added);
    let mut added = added.into_iter();
    if let (Some(last), Some(next)) = (pipelines.last_mut(), added.next()) {
        last.commands.extend(next.commands);
    }
    pipelines.extend(added);
}

/// Adds a redirection to the newest command. What follows a here-document on its line is part of it for the grammar.
fn add_redirect(redirect: Node<'_>, line: &str, pipelines: &mut Vec<Pipeline>) {
    let Some(pipeline) = pipelines.last_mut() else { return };
    let Some(command) = pipeline.commands.last_mut() else { return };
    match redirect.kind() {
        "file_redirect" => command.writes.extend(written(redirect, line)),
        "heredoc_redirect" => {
            let parts = children(redirect);
            let body = parts.iter().find(|part| part.kind() == "heredoc_body");
            command.document = body.map(|body| line[body.byte_range()].to_owned());
            let mut joint = Joint::And;
            for part in parts {
                match part.kind() {
                    "||" => joint = Joint::Or,
                    "file_redirect" => add_redirect(part, line, pipelines),
                    "pipeline" => {
                        let piped = children(part).into_iter().filter(Node::is_named);
                        piped.for_each(|part| add_piped(part, line, pipelines));
                    }
                    "command" | "list" | "redirected_statement" => add(part, joint, line, pipelines),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// The file that a redirection writes, if it is known.
fn written(redirect: Node<'_>, line: &str) -> Option<String> {
    let parts = children(redirect);
    let is_output = parts.iter().any(|part| [">", ">>", "&>", "&>>", ">|"].contains(&part.kind()));
    let target = redirect.child_by_field_name("destination").filter(|_| is_output)?;
    let path = literal(target, line);
    (!path.contains([UNKNOWN, LITERAL]) && !path.starts_with("/dev/")).then_some(path)
}

fn command(node: Node<'_>, line: &str) -> ShellCommand {
    let text = |node: Node<'_>| line[node.byte_range()].to_owned();
    let parts = || children(node).into_iter().filter(|part| !part.kind().ends_with("_redirect"));
    match node.kind() {
        "command" | "declaration_command" | "unset_command" | "test_command" => ShellCommand {
            text: parts().map(text).collect::<Vec<_>>().join(" "),
            words: parts()
                .filter(|part| node.kind() != "command" || part.kind() != "variable_assignment")
                .map(|part| part.named_child(0).filter(|_| part.kind() == "command_name").unwrap_or(part))
                .map(|part| literal(part, line))
                .collect(),
            ..ShellCommand::default()
        },
        "variable_assignment" | "variable_assignments" => {
            ShellCommand { text: text(node), words: vec!["export".to_owned()], ..ShellCommand::default() }
        }
        _ => {
            let mut inner = Vec::new();
            add_simple(node, line, &mut inner);
            ShellCommand { text: text(node), inner, ..ShellCommand::default() }
        }
    }
}

/// Adds the simple commands within a node, with their redirections.
fn add_simple(node: Node<'_>, line: &str, commands: &mut Vec<ShellCommand>) {
    for part in children(node) {
        match part.kind() {
            "command" => commands.push(command(part, line)),
            "file_redirect" => {
                if let Some(last) = commands.last_mut() {
                    last.writes.extend(written(part, line));
                }
            }
            _ if part.is_named() => add_simple(part, line, commands),
            _ => {}
        }
    }
}

impl Pipeline {
    fn of(joint: Joint, command: ShellCommand) -> Pipeline {
        Pipeline { joint, commands: vec![command], is_negated: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statements in a short form: `;` between statements, `&` after one in the background.
    fn shown(line: &str) -> String {
        let Some(statements) = statements(line) else { return "?".to_owned() };
        fn shown_command(command: &ShellCommand) -> String {
            let written: String = command.writes.iter().map(|file| format!(" >{file}")).collect();
            let document = command.document.as_ref().map(|text| format!(" <<{}", text.trim()));
            let inner: String =
                command.inner.iter().map(|inner| format!("[{}]", shown_command(inner))).collect();
            format!("{}{}{written}{inner}", command.words.join(","), document.unwrap_or_default())
        }
        let pipeline = |pipeline: &Pipeline| {
            let joint = match pipeline.joint {
                Joint::First => "",
                Joint::And => " && ",
                Joint::Or => " || ",
            };
            let negated = if pipeline.is_negated { "!" } else { "" };
            let commands: Vec<String> = pipeline.commands.iter().map(shown_command).collect();
            format!("{joint}{negated}{}", commands.join(" | "))
        };
        let statement = |statement: &ShellStatement| {
            let pipelines: String = statement.pipelines.iter().map(pipeline).collect();
            format!("{pipelines}{}", if statement.is_background { " &" } else { "" })
        };
        statements.iter().map(statement).collect::<Vec<_>>().join(" ; ")
    }

    #[test]
    fn a_line_is_read_as_statements_pipelines_and_words() {
        for (line, wanted) in [
            ("cargo  test", "cargo,test"),
            // The line break after `cd` was not read, and neither was the quote around a pipe.
            ("cd /w\ncargo test; ls", "cd,/w ; cargo,test ; ls"),
            ("rg 'a | b' src | head -3", "rg,a | b,src | head,-3"),
            ("a && b || c", "a && b || c"),
            ("cd x && cargo test 2>&1 | tail -5", "cd,x && cargo,test | tail,-5"),
            ("! grep -q x y", "!grep,-q,x,y"),
            ("A=1 make &\nsleep 1", "make & ; sleep,1"),
            ("cat > a.txt <<'EOF'\nrm -rf x\nEOF\nmake", "cat <<rm -rf x >a.txt ; make"),
            ("git commit -F x <<'E' && git push\nx\nE", "git,commit,-F,x <<x && git,push"),
            ("cat <<E | sort > b\nx\nE", "cat <<x | sort >b"),
            ("make 2>/dev/null >> log", "make >log"),
            ("for f in a b; do cat \"$f.rs\" > c; done", "[cat,\u{1}.rs >c]"),
            ("(cd x && make)", "[cd,x][make]"),
            ("export A=1 && B=2", "export,A=1 && export"),
            ("# nothing", ""),
            ("a | | b", "?"),
        ] {
            assert_eq!(shown(line), wanted, "{line}");
        }
    }
}
