//! Parses a template's tokens into a tree and rejects what cannot be evaluated: unknown functions, variables
//! and templates are found here, before anything is rendered.

use std::collections::BTreeMap;

use super::lexer::{Kind, Token, lex};
use super::{NESTING_MAX, TemplateError, Value};

/// The functions that a recipe can call.
pub const FUNCTIONS: [&str; 16] = [
    "and", "bash", "default", "eq", "ge", "gt", "index", "le", "len", "lt", "ne", "not", "or", "print",
    "printf", "println",
];

/// Words that begin an action other than printing a value.
const KEYWORDS: [&str; 10] =
    ["end", "else", "if", "with", "range", "define", "block", "template", "break", "continue"];

/// A parsed template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    pub(super) body: Vec<Node>,
    pub(super) defined: BTreeMap<String, Vec<Node>>,
    fields: Vec<String>,
}

impl Template {
    /// Whether the text reads the variable anywhere, as `.name` or as `index . "name"`.
    pub fn mentions(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field == name)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Literal(String),
    Print(Pipe),
    If { arms: Vec<(Pipe, Vec<Node>)>, otherwise: Vec<Node> },
    With { arms: Vec<(Pipe, Vec<Node>)>, otherwise: Vec<Node> },
    Range { over: Pipe, body: Vec<Node>, otherwise: Vec<Node> },
    Call { at: usize, name: String, with: Option<Pipe> },
    Break,
    Continue,
}

/// `$a, $b := command | command`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pipe {
    pub at: usize,
    pub target: Target,
    pub commands: Vec<Command>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    Nothing,
    Declare(Vec<String>),
    Assign(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Command {
    pub at: usize,
    pub head: Operand,
    pub arguments: Vec<Operand>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operand {
    pub at: usize,
    pub base: Base,
    /// `.a.b` after the base.
    pub fields: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Base {
    Dot,
    Variable(String),
    Literal(Value),
    Function(String),
    Group(Box<Pipe>),
}

/// Parses a template.
pub fn compile(source: &str) -> Result<Template, TemplateError> {
    let mut parser = Parser {
        tokens: lex(source)?,
        next: 0,
        end: source.len(),
        variables: vec![String::new()],
        depth: 0,
        loops: 0,
        defined: BTreeMap::new(),
        calls: Vec::new(),
        fields: Vec::new(),
    };
    let (body, end) = parser.block(&[])?;
    debug_assert!(end.is_none(), "a block that nothing can end runs to the end of the text");
    for (at, name) in &parser.calls {
        if !parser.defined.contains_key(name) {
            return Err(TemplateError::new(*at, format!("no template is called {name:?}"))
                .with_hint(format!("define it with {{{{define {name:?}}}}}…{{{{end}}}}")));
        }
    }
    Ok(Template { body, defined: parser.defined, fields: parser.fields })
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    end: usize,
    /// Names in scope, innermost last; the empty one is `$`.
    variables: Vec<String>,
    depth: usize,
    loops: usize,
    defined: BTreeMap<String, Vec<Node>>,
    calls: Vec<(usize, String)>,
    fields: Vec<String>,
}

/// The word that ended a block, and its position; the action is consumed up to and including that word.
type Ending = Option<(String, usize)>;

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn peek_kind(&self) -> Option<&Kind> {
        self.peek().map(|token| &token.kind)
    }

    fn at(&self) -> usize {
        self.peek().map_or(self.end, |token| token.at)
    }

    fn take(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.next).cloned();
        self.next += 1;
        token
    }

    fn close(&mut self, what: &str) -> Result<(), TemplateError> {
        let at = self.at();
        match self.take().map(|token| token.kind) {
            Some(Kind::Close) => Ok(()),
            _ => Err(TemplateError::new(at, format!("{what} ends here; `}}}}` is missing"))),
        }
    }

    fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Parser) -> Result<T, TemplateError>,
    ) -> Result<T, TemplateError> {
        if self.depth == NESTING_MAX {
            return Err(TemplateError::new(self.at(), format!("nested more than {NESTING_MAX} levels deep")));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// Parses nodes up to one of the words, or to the end of the text if `ends` is empty.
    fn block(&mut self, ends: &[&str]) -> Result<(Vec<Node>, Ending), TemplateError> {
        let mut nodes = Vec::new();
        while let Some(token) = self.take() {
            let at = token.at;
            let Kind::Open = token.kind else {
                if let Kind::Literal(text) = token.kind {
                    nodes.push(Node::Literal(text));
                }
                continue;
            };
            let Some(Kind::Word(word)) = self.peek_kind().cloned() else {
                nodes.push(self.print()?);
                continue;
            };
            if !KEYWORDS.contains(&word.as_str()) {
                nodes.push(self.print()?);
                continue;
            }
            self.next += 1;
            match word.as_str() {
                "end" | "else" => {
                    if ends.contains(&word.as_str()) {
                        return Ok((nodes, Some((word, at))));
                    }
                    return Err(TemplateError::new(at, format!("{word:?} has no block that it belongs to")));
                }
                "if" | "with" => nodes.push(self.deeper(|parser| parser.branches(&word, at))?),
                "range" => nodes.push(self.deeper(|parser| parser.range(at))?),
                "define" | "block" => nodes.extend(self.deeper(|parser| parser.define(&word, at))?),
                "template" => {
                    let name = self.name("template")?;
                    let with = if self.peek_kind() == Some(&Kind::Close) { None } else { Some(self.pipe()?) };
                    self.close("a template call")?;
                    self.calls.push((at, name.clone()));
                    nodes.push(Node::Call { at, name, with });
                }
                // `break` and `continue`.
                _ => {
                    self.close(&word)?;
                    if self.loops == 0 {
                        return Err(TemplateError::new(at, format!("{word:?} is outside of a range")));
                    }
                    nodes.push(if word == "break" { Node::Break } else { Node::Continue });
                }
            }
        }
        if ends.is_empty() {
            return Ok((nodes, None));
        }
        Err(TemplateError::new(self.end, UNCLOSED).with_hint("an {{end}} is missing"))
    }

    /// The body of a block that `word` begins. If the text ends inside it, the error has the position of the
    /// block's start, which is what the author needs to find.
    fn body(&mut self, ends: &[&str], word: &str, at: usize) -> Result<(Vec<Node>, Ending), TemplateError> {
        self.block(ends).map_err(|error| match error.at == self.end && error.message == UNCLOSED {
            true => TemplateError::new(at, format!("this {word:?} has no {{{{end}}}}")),
            false => error,
        })
    }

    fn print(&mut self) -> Result<Node, TemplateError> {
        let pipe = self.pipe()?;
        self.close("an action")?;
        Ok(Node::Print(pipe))
    }

    /// `if` and `with`, after the keyword, with their `else if` and `else with`.
    fn branches(&mut self, word: &str, at: usize) -> Result<Node, TemplateError> {
        let scope = self.variables.len();
        let mut arms = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let condition = self.pipe()?;
            self.close(&format!("{word:?}"))?;
            let inner = self.variables.len();
            let (body, end) = self.body(&["else", "end"], word, at)?;
            self.variables.truncate(inner);
            arms.push((condition, body));
            let ended_by_else = end.is_some_and(|(end, _)| end == "else");
            if ended_by_else && self.peek_kind() == Some(&Kind::Word(word.to_owned())) {
                self.next += 1;
                continue;
            }
            if ended_by_else {
                self.close("\"else\"")?;
                (otherwise, _) = self.body(&["end"], word, at)?;
            }
            self.close("\"end\"")?;
            self.variables.truncate(scope);
            return Ok(match word {
                "with" => Node::With { arms, otherwise },
                _ => Node::If { arms, otherwise },
            });
        }
    }

    fn range(&mut self, at: usize) -> Result<Node, TemplateError> {
        let scope = self.variables.len();
        let over = self.pipe()?;
        self.close("\"range\"")?;
        let inner = self.variables.len();
        self.loops += 1;
        let body = self.body(&["else", "end"], "range", at);
        self.loops -= 1;
        let (body, end) = body?;
        self.variables.truncate(inner);
        let mut otherwise = Vec::new();
        if end.is_some_and(|(end, _)| end == "else") {
            self.close("\"else\"")?;
            (otherwise, _) = self.body(&["end"], "range", at)?;
        }
        self.close("\"end\"")?;
        self.variables.truncate(scope);
        Ok(Node::Range { over, body, otherwise })
    }

    /// `define`, and `block`, which is a definition and its call.
    fn define(&mut self, word: &str, at: usize) -> Result<Option<Node>, TemplateError> {
        let name = self.name(word)?;
        let with = if word == "block" { Some(self.pipe()?) } else { None };
        self.close(&format!("{word:?}"))?;
        let outer = std::mem::replace(&mut self.variables, vec![String::new()]);
        let outer_loops = std::mem::take(&mut self.loops);
        let (body, _) = self.body(&["end"], word, at)?;
        self.close("\"end\"")?;
        self.variables = outer;
        self.loops = outer_loops;
        self.defined.insert(name.clone(), body);
        Ok(with.map(|pipe| Node::Call { at, name, with: Some(pipe) }))
    }

    fn name(&mut self, word: &str) -> Result<String, TemplateError> {
        let at = self.at();
        match self.take().map(|token| token.kind) {
            Some(Kind::Text(name)) => Ok(name),
            _ => Err(TemplateError::new(at, format!("{word:?} wants a name in double quotes"))),
        }
    }

    fn pipe(&mut self) -> Result<Pipe, TemplateError> {
        self.deeper(Parser::pipe_here)
    }

    fn pipe_here(&mut self) -> Result<Pipe, TemplateError> {
        let at = self.at();
        let target = self.target()?;
        let mut commands = vec![self.command()?];
        while self.peek_kind() == Some(&Kind::Pipe) {
            self.next += 1;
            let command = self.command()?;
            if !matches!(command.head.base, Base::Function(_)) {
                return Err(TemplateError::new(command.at, "only a function can follow `|`"));
            }
            commands.push(command);
        }
        // Declared after the commands: `{{$x := $x}}` reads the outer variable.
        if let Target::Declare(names) = &target {
            self.variables.extend(names.iter().cloned());
        }
        Ok(Pipe { at, target, commands })
    }

    fn target(&mut self) -> Result<Target, TemplateError> {
        let start = self.next;
        let mut names = Vec::new();
        while let Some(Kind::Variable(name)) = self.peek_kind().cloned() {
            let at = self.at();
            self.next += 1;
            names.push(name);
            match self.peek_kind() {
                Some(Kind::Comma) if names.len() == 1 => self.next += 1,
                Some(Kind::Declare) => {
                    self.next += 1;
                    return Ok(Target::Declare(names));
                }
                Some(Kind::Assign) => {
                    self.next += 1;
                    if let Some(unknown) = names.iter().find(|name| !self.variables.contains(name)) {
                        return Err(undeclared(unknown, at));
                    }
                    return Ok(Target::Assign(names));
                }
                _ => break,
            }
        }
        self.next = start;
        Ok(Target::Nothing)
    }

    fn command(&mut self) -> Result<Command, TemplateError> {
        let at = self.at();
        let head = self.operand()?;
        let mut arguments = Vec::new();
        while !matches!(self.peek_kind(), None | Some(Kind::Close | Kind::Pipe | Kind::RightParen)) {
            arguments.push(self.operand()?);
        }
        if !arguments.is_empty() && !matches!(head.base, Base::Function(_)) {
            return Err(TemplateError::new(at, "this is not a function and takes no arguments")
                .with_hint("one action prints one value"));
        }
        if let (Base::Function(name), Some(Operand { base: Base::Literal(Value::Text(key)), .. })) =
            (&head.base, arguments.get(1))
            && name == "index"
        {
            self.fields.push(key.clone());
        }
        Ok(Command { at, head, arguments })
    }

    fn operand(&mut self) -> Result<Operand, TemplateError> {
        let at = self.at();
        let mut fields = Vec::new();
        let base = match self.take().map(|token| token.kind) {
            Some(Kind::Dot) => Base::Dot,
            Some(Kind::Field(name)) => {
                fields.push(name);
                Base::Dot
            }
            Some(Kind::Variable(name)) => {
                if !self.variables.contains(&name) {
                    return Err(undeclared(&name, at));
                }
                Base::Variable(name)
            }
            Some(Kind::Text(text)) => Base::Literal(Value::Text(text)),
            Some(Kind::Int(value)) => Base::Literal(Value::Int(value)),
            Some(Kind::Float(value)) => Base::Literal(Value::Float(value)),
            Some(Kind::Word(word)) => match word.as_str() {
                "true" => Base::Literal(Value::Bool(true)),
                "false" => Base::Literal(Value::Bool(false)),
                "nil" => Base::Literal(Value::Missing),
                name if FUNCTIONS.contains(&name) => Base::Function(word),
                _ => return Err(unknown_function(&word, at)),
            },
            Some(Kind::LeftParen) => {
                let pipe = self.pipe()?;
                let close_at = self.at();
                if self.take().map(|token| token.kind) != Some(Kind::RightParen) {
                    return Err(TemplateError::new(close_at, "`)` is missing"));
                }
                Base::Group(Box::new(pipe))
            }
            _ => return Err(TemplateError::new(at, "a value is missing here")),
        };
        while let Some(Token { kind: Kind::Field(name), spaced: false, .. }) = self.peek() {
            fields.push(name.clone());
            self.next += 1;
        }
        self.fields.extend(fields.first().cloned());
        Ok(Operand { at, base, fields })
    }
}

const UNCLOSED: &str = "the text ends inside a block";

fn undeclared(name: &str, at: usize) -> TemplateError {
    TemplateError::new(at, format!("the variable ${name} is not declared here"))
        .with_hint(format!("declare it with {{{{${name} := …}}}}, or write .{name} for an argument"))
}

fn unknown_function(word: &str, at: usize) -> TemplateError {
    TemplateError::new(at, format!("there is no function called {word:?}"))
        .with_hint(format!("an argument is written .{word}; known functions: {}", FUNCTIONS.join(", ")))
}
