//! Parses a template's tokens into a tree and rejects what cannot be evaluated: unknown functions, variables
//! and templates are found here, before anything is rendered.

use std::collections::BTreeMap;

use super::lexer::{TemplateToken, TokenKind, lex};
use super::{NESTING_MAX, TemplateError, TemplateValue};

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
    pub(super) body: Vec<TemplateNode>,
    pub(super) defined: BTreeMap<String, Vec<TemplateNode>>,
    fields: Vec<String>,
}

impl Template {
    /// Whether the text reads the variable anywhere, as `.name` or as `index . "name"`.
    pub fn mentions(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field == name)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TemplateNode {
    Literal(String),
    Print(Pipe),
    /// `if`, or `with`, whose condition becomes the dot.
    Choice {
        is_with: bool,
        arms: Vec<(Pipe, Vec<TemplateNode>)>,
        otherwise: Vec<TemplateNode>,
    },
    Range {
        over: Pipe,
        body: Vec<TemplateNode>,
        otherwise: Vec<TemplateNode>,
    },
    Call {
        at: usize,
        name: String,
        with: Option<Pipe>,
    },
    Break,
    Continue,
}

/// `$a, $b := command | command`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pipe {
    pub at: usize,
    pub target: PipeTarget,
    pub commands: Vec<PipeCommand>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum PipeTarget {
    Nothing,
    Declare(Vec<String>),
    Assign(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PipeCommand {
    pub at: usize,
    pub head: Operand,
    pub arguments: Vec<Operand>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operand {
    pub at: usize,
    pub base: OperandBase,
    /// `.a.b` after the base.
    pub fields: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum OperandBase {
    Dot,
    Variable(String),
    Literal(TemplateValue),
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
    let (body, _) = parser.block(None, &[])?;
    for (at, name) in &parser.calls {
        if !parser.defined.contains_key(name) {
            return Err(TemplateError::new(*at, format!("no template is called {name:?}"))
                .with_hint(format!("define it with {{{{define {name:?}}}}}…{{{{end}}}}")));
        }
    }
    Ok(Template { body, defined: parser.defined, fields: parser.fields })
}

struct Parser {
    tokens: Vec<TemplateToken>,
    next: usize,
    end: usize,
    /// Names in scope, innermost last; the empty one is `$`.
    variables: Vec<String>,
    depth: usize,
    loops: usize,
    defined: BTreeMap<String, Vec<TemplateNode>>,
    calls: Vec<(usize, String)>,
    fields: Vec<String>,
}

impl Parser {
    fn peek(&self) -> Option<&TemplateToken> {
        self.tokens.get(self.next)
    }

    fn peek_kind(&self) -> Option<&TokenKind> {
        self.peek().map(|token| &token.kind)
    }

    fn at(&self) -> usize {
        self.peek().map_or(self.end, |token| token.at)
    }

    fn take(&mut self) -> Option<TemplateToken> {
        let token = self.tokens.get(self.next).cloned();
        self.next += 1;
        token
    }

    fn close(&mut self, what: &str) -> Result<(), TemplateError> {
        let at = self.at();
        match self.take().map(|token| token.kind) {
            Some(TokenKind::Close) => Ok(()),
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
        let result = read(self)?;
        self.depth -= 1;
        Ok(result)
    }

    /// Parses nodes up to one of the words in `ends`. Returns it, too; its action is consumed up to and including it.
    /// `opened` is the word that begins the block, and its position; without one, the text is parsed to its end.
    fn block(
        &mut self,
        opened: Option<(&str, usize)>,
        ends: &[&str],
    ) -> Result<(Vec<TemplateNode>, String), TemplateError> {
        let mut nodes = Vec::new();
        while let Some(TemplateToken { kind, at, .. }) = self.take() {
            let TokenKind::Open = kind else {
                if let TokenKind::Literal(text) = kind {
                    nodes.push(TemplateNode::Literal(text));
                }
                continue;
            };
            let word = match self.peek_kind() {
                Some(TokenKind::Word(word)) if KEYWORDS.contains(&word.as_str()) => word.clone(),
                _ => {
                    nodes.push(self.print()?);
                    continue;
                }
            };
            self.next += 1;
            match word.as_str() {
                "end" | "else" => {
                    if ends.contains(&word.as_str()) {
                        return Ok((nodes, word));
                    }
                    return Err(TemplateError::new(at, format!("{word:?} has no block that it belongs to")));
                }
                "if" | "with" => nodes.push(self.deeper(|parser| parser.branches(&word, at))?),
                "range" => nodes.push(self.deeper(|parser| parser.range(at))?),
                "define" | "block" => nodes.extend(self.deeper(|parser| parser.define(&word, at))?),
                "template" => {
                    let name = self.name("template")?;
                    let with =
                        if self.peek_kind() == Some(&TokenKind::Close) { None } else { Some(self.pipe()?) };
                    self.close("a template call")?;
                    self.calls.push((at, name.clone()));
                    nodes.push(TemplateNode::Call { at, name, with });
                }
                // `break` and `continue`.
                _ => {
                    self.close(&word)?;
                    if self.loops == 0 {
                        return Err(TemplateError::new(at, format!("{word:?} is outside of a range")));
                    }
                    nodes.push(if word == "break" { TemplateNode::Break } else { TemplateNode::Continue });
                }
            }
        }
        match opened {
            // The author needs to find the start of the block.
            Some((word, at)) => Err(TemplateError::new(at, format!("this {word:?} has no {{{{end}}}}"))),
            None => Ok((nodes, String::new())),
        }
    }

    /// The rest of a block whose body ended with `end`: the nodes for its `else`.
    fn otherwise(&mut self, end: &str, opened: (&str, usize)) -> Result<Vec<TemplateNode>, TemplateError> {
        let mut otherwise = Vec::new();
        if end == "else" {
            self.close("\"else\"")?;
            (otherwise, _) = self.block(Some(opened), &["end"])?;
        }
        self.close("\"end\"")?;
        Ok(otherwise)
    }

    fn print(&mut self) -> Result<TemplateNode, TemplateError> {
        let pipe = self.pipe()?;
        self.close("an action")?;
        Ok(TemplateNode::Print(pipe))
    }

    /// `if` and `with`, after the keyword, with their `else if` and `else with`.
    fn branches(&mut self, word: &str, at: usize) -> Result<TemplateNode, TemplateError> {
        let scope = self.variables.len();
        let mut arms = Vec::new();
        loop {
            let condition = self.pipe()?;
            self.close(&format!("{word:?}"))?;
            let inner = self.variables.len();
            let (body, end) = self.block(Some((word, at)), &["else", "end"])?;
            self.variables.truncate(inner);
            arms.push((condition, body));
            if end == "else" && self.peek_kind() == Some(&TokenKind::Word(word.to_owned())) {
                self.next += 1;
                continue;
            }
            let otherwise = self.otherwise(&end, (word, at))?;
            self.variables.truncate(scope);
            return Ok(TemplateNode::Choice { is_with: word == "with", arms, otherwise });
        }
    }

    fn range(&mut self, at: usize) -> Result<TemplateNode, TemplateError> {
        let scope = self.variables.len();
        let over = self.pipe()?;
        self.close("\"range\"")?;
        let inner = self.variables.len();
        self.loops += 1;
        let (body, end) = self.block(Some(("range", at)), &["else", "end"])?;
        self.loops -= 1;
        self.variables.truncate(inner);
        let otherwise = self.otherwise(&end, ("range", at))?;
        self.variables.truncate(scope);
        Ok(TemplateNode::Range { over, body, otherwise })
    }

    /// `define`, and `block`, which is a definition and its call.
    fn define(&mut self, word: &str, at: usize) -> Result<Option<TemplateNode>, TemplateError> {
        let name = self.name(word)?;
        let with = if word == "block" { Some(self.pipe()?) } else { None };
        self.close(&format!("{word:?}"))?;
        let outer = std::mem::replace(&mut self.variables, vec![String::new()]);
        let outer_loops = std::mem::take(&mut self.loops);
        let (body, _) = self.block(Some((word, at)), &["end"])?;
        self.variables = outer;
        self.loops = outer_loops;
        self.close("\"end\"")?;
        self.defined.insert(name.clone(), body);
        Ok(with.map(|pipe| TemplateNode::Call { at, name, with: Some(pipe) }))
    }

    fn name(&mut self, word: &str) -> Result<String, TemplateError> {
        let at = self.at();
        match self.take().map(|token| token.kind) {
            Some(TokenKind::Text(name)) => Ok(name),
            _ => Err(TemplateError::new(at, format!("{word:?} needs a name in double quotes"))),
        }
    }

    fn pipe(&mut self) -> Result<Pipe, TemplateError> {
        self.deeper(Parser::pipe_here)
    }

    fn pipe_here(&mut self) -> Result<Pipe, TemplateError> {
        let at = self.at();
        let target = self.target()?;
        let mut commands = vec![self.command()?];
        while self.peek_kind() == Some(&TokenKind::Pipe) {
            self.next += 1;
            let command = self.command()?;
            if !matches!(command.head.base, OperandBase::Function(_)) {
                return Err(TemplateError::new(command.at, "only a function can follow `|`"));
            }
            commands.push(command);
        }
        // Declared after the commands: `{{$x := $x}}` reads the outer variable.
        if let PipeTarget::Declare(names) = &target {
            self.variables.extend(names.iter().cloned());
        }
        Ok(Pipe { at, target, commands })
    }

    fn target(&mut self) -> Result<PipeTarget, TemplateError> {
        let start = self.next;
        let mut names = Vec::new();
        while let Some(TokenKind::Variable(name)) = self.peek_kind().cloned() {
            let at = self.at();
            self.next += 1;
            names.push(name);
            match self.peek_kind() {
                Some(TokenKind::Comma) if names.len() == 1 => self.next += 1,
                Some(TokenKind::Declare) => {
                    self.next += 1;
                    return Ok(PipeTarget::Declare(names));
                }
                Some(TokenKind::Assign) => {
                    self.next += 1;
                    if let Some(unknown) = names.iter().find(|name| !self.variables.contains(name)) {
                        return Err(undeclared(unknown, at));
                    }
                    return Ok(PipeTarget::Assign(names));
                }
                _ => break,
            }
        }
        self.next = start;
        Ok(PipeTarget::Nothing)
    }

    fn command(&mut self) -> Result<PipeCommand, TemplateError> {
        let at = self.at();
        let head = self.operand()?;
        let mut arguments = Vec::new();
        while !matches!(
            self.peek_kind(),
            None | Some(TokenKind::Close | TokenKind::Pipe | TokenKind::RightParen)
        ) {
            arguments.push(self.operand()?);
        }
        if !arguments.is_empty() && !matches!(head.base, OperandBase::Function(_)) {
            return Err(TemplateError::new(at, "this is not a function and takes no arguments")
                .with_hint("one action prints one value"));
        }
        if let (
            OperandBase::Function(name),
            Some(Operand { base: OperandBase::Literal(TemplateValue::Text(key)), .. }),
        ) = (&head.base, arguments.get(1))
            && name == "index"
        {
            self.fields.push(key.clone());
        }
        Ok(PipeCommand { at, head, arguments })
    }

    fn operand(&mut self) -> Result<Operand, TemplateError> {
        let at = self.at();
        let mut fields = Vec::new();
        let base = match self.take().map(|token| token.kind) {
            Some(TokenKind::Dot) => OperandBase::Dot,
            Some(TokenKind::Field(name)) => {
                fields.push(name);
                OperandBase::Dot
            }
            Some(TokenKind::Variable(name)) => {
                if !self.variables.contains(&name) {
                    return Err(undeclared(&name, at));
                }
                OperandBase::Variable(name)
            }
            Some(TokenKind::Text(text)) => OperandBase::Literal(TemplateValue::Text(text)),
            Some(TokenKind::Int(value)) => OperandBase::Literal(TemplateValue::Int(value)),
            Some(TokenKind::Float(value)) => OperandBase::Literal(TemplateValue::Float(value)),
            Some(TokenKind::Word(word)) => match word.as_str() {
                "true" => OperandBase::Literal(TemplateValue::Bool(true)),
                "false" => OperandBase::Literal(TemplateValue::Bool(false)),
                "nil" => OperandBase::Literal(TemplateValue::Missing),
                name if FUNCTIONS.contains(&name) => OperandBase::Function(word),
                _ => return Err(unknown_function(&word, at)),
            },
            Some(TokenKind::LeftParen) => {
                let pipe = self.pipe()?;
                let close_at = self.at();
                if self.take().map(|token| token.kind) != Some(TokenKind::RightParen) {
                    return Err(TemplateError::new(close_at, "`)` is missing"));
                }
                OperandBase::Group(Box::new(pipe))
            }
            _ => return Err(TemplateError::new(at, "a value is missing here")),
        };
        while let Some(TemplateToken { kind: TokenKind::Field(name), spaced: false, .. }) = self.peek() {
            fields.push(name.clone());
            self.next += 1;
        }
        self.fields.extend(fields.first().cloned());
        Ok(Operand { at, base, fields })
    }
}

fn undeclared(name: &str, at: usize) -> TemplateError {
    TemplateError::new(at, format!("the variable ${name} is not declared here"))
        .with_hint(format!("declare it with {{{{${name} := …}}}}, or write .{name} for an argument"))
}

fn unknown_function(word: &str, at: usize) -> TemplateError {
    TemplateError::new(at, format!("there is no function called {word:?}"))
        .with_hint(format!("an argument is written .{word}; known functions: {}", FUNCTIONS.join(", ")))
}
