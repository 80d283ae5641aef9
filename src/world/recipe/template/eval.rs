//! Evaluates a template over its variables. Starts no process: if the output of a command is needed and not
//! known, evaluation returns the command and is called again with its output.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::functions;
use super::parser::{Operand, OperandBase, Pipe, PipeCommand, PipeTarget, Template, TemplateNode};
use super::{
    EVALUATION_DEPTH_MAX, OUTPUT_BYTES_MAX, SHELL_CALLS_MAX, STEPS_MAX, TemplateError, TemplateValue,
};

/// The variables visible to a template.
#[derive(Clone, Debug, Default)]
pub struct TemplateScope {
    /// The fields of the dot.
    pub variables: BTreeMap<String, TemplateValue>,
    /// Names that may be missing without a warning: arguments that are declared but not given.
    pub optional: BTreeSet<String>,
    /// Prints `<no value>` for missing values, as Go does (`templates.go_compat`).
    pub go_compat: bool,
}

/// The outcome of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluated {
    /// The text, and warnings.
    Done { text: String, warnings: Vec<String> },
    /// The words of commands whose output is needed first; without duplicates, in order.
    Needs(Vec<Vec<String>>),
}

/// Evaluates a template. `known` maps the words of commands to their outputs, so a command that occurs twice
/// in a template runs once.
pub fn evaluate(
    template: &Template,
    scope: &TemplateScope,
    known: &BTreeMap<Vec<String>, String>,
) -> Result<Evaluated, TemplateError> {
    let root = TemplateValue::Map(Arc::new(scope.variables.clone()));
    let mut run = Evaluation {
        template,
        scope,
        known,
        variables: vec![(String::new(), root.clone())],
        out: String::new(),
        warnings: Vec::new(),
        needs: Vec::new(),
        steps: 0,
        depth: 0,
        latest_call: 0,
    };
    match run.nodes(&template.body, &root) {
        Ok(()) | Err(EvaluationStop::Need) => {}
        Err(EvaluationStop::Error(error)) => return Err(error),
        Err(EvaluationStop::Break | EvaluationStop::Continue) => {
            unreachable!("the parser keeps these inside of a range")
        }
    }
    if run.needs.is_empty() {
        return Ok(Evaluated::Done { text: run.out, warnings: run.warnings });
    }
    Ok(Evaluated::Needs(run.needs))
}

/// Why evaluation does not continue with the next node.
enum EvaluationStop {
    Error(TemplateError),
    /// A command's output is not known, and what follows may depend on it.
    Need,
    Break,
    Continue,
}

impl From<TemplateError> for EvaluationStop {
    fn from(error: TemplateError) -> EvaluationStop {
        EvaluationStop::Error(error)
    }
}

struct Evaluation<'a> {
    template: &'a Template,
    scope: &'a TemplateScope,
    known: &'a BTreeMap<Vec<String>, String>,
    variables: Vec<(String, TemplateValue)>,
    out: String,
    warnings: Vec<String>,
    needs: Vec<Vec<String>>,
    steps: u64,
    depth: usize,
    /// Position of the latest template call, reported when evaluation nests too deeply.
    latest_call: usize,
}

impl Evaluation<'_> {
    fn step(&mut self, at: usize, count: u64) -> Result<(), EvaluationStop> {
        self.steps += count;
        if self.steps > STEPS_MAX {
            let error = TemplateError::new(at, format!("this takes more than {STEPS_MAX} steps"));
            return Err(error.with_hint("a range or a template call repeats too often").into());
        }
        Ok(())
    }

    /// Evaluates a body. The only place where a template can make evaluation recurse.
    fn nodes(&mut self, nodes: &[TemplateNode], dot: &TemplateValue) -> Result<(), EvaluationStop> {
        if self.depth == EVALUATION_DEPTH_MAX {
            let message =
                format!("blocks and template calls are more than {EVALUATION_DEPTH_MAX} levels deep");
            let error = TemplateError::new(self.latest_call, message);
            return Err(error.with_hint("does a template call itself?").into());
        }
        self.depth += 1;
        let result = nodes.iter().try_for_each(|node| self.node(node, dot));
        self.depth -= 1;
        result
    }

    fn node(&mut self, node: &TemplateNode, dot: &TemplateValue) -> Result<(), EvaluationStop> {
        match node {
            TemplateNode::Literal(text) => {
                self.step(0, 1)?;
                self.write(0, text)
            }
            TemplateNode::Print(pipe) => match self.pipe(pipe, dot) {
                Ok(value) if pipe.target == PipeTarget::Nothing => self.print(pipe, &value),
                // Nothing else depends on text that is only printed, so later commands can be requested in
                // the same pass.
                Err(EvaluationStop::Need) if pipe.target == PipeTarget::Nothing => Ok(()),
                bound => bound.map(drop),
            },
            TemplateNode::Choice { is_with, arms, otherwise } => self.scoped(|run| {
                for (condition, body) in arms {
                    let value = run.pipe(condition, dot)?;
                    if value.truth() {
                        return run.nodes(body, if *is_with { &value } else { dot });
                    }
                }
                run.nodes(otherwise, dot)
            }),
            TemplateNode::Range { over, body, otherwise } => {
                self.scoped(|run| run.range(over, body, otherwise, dot))
            }
            TemplateNode::Call { at, name, with } => self.call_template(*at, name, with.as_ref(), dot),
            TemplateNode::Break => Err(EvaluationStop::Break),
            TemplateNode::Continue => Err(EvaluationStop::Continue),
        }
    }

    /// Runs a closure and drops the variables that it declared.
    fn scoped<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, EvaluationStop>,
    ) -> Result<T, EvaluationStop> {
        let length = self.variables.len();
        let result = inner(self);
        self.variables.truncate(length);
        result
    }

    fn range(
        &mut self,
        over: &Pipe,
        body: &[TemplateNode],
        otherwise: &[TemplateNode],
        dot: &TemplateValue,
    ) -> Result<(), EvaluationStop> {
        let value = self.commands(over, dot)?;
        let items: Box<dyn Iterator<Item = (TemplateValue, TemplateValue)>> = match &value {
            TemplateValue::Map(map) => {
                Box::new(map.iter().map(|(key, value)| (TemplateValue::Text(key.clone()), value.clone())))
            }
            TemplateValue::Int(count) => {
                Box::new((0..*count).map(|index| (TemplateValue::Int(index), TemplateValue::Int(index))))
            }
            TemplateValue::Missing => Box::new(std::iter::empty()),
            other => {
                let error = TemplateError::new(over.at, format!("range cannot go over {}", other.kind()));
                return Err(error
                    .with_hint("it goes over the arguments (`range $name, $value := .`) or a number")
                    .into());
            }
        };
        let is_single = matches!(
            &over.target, PipeTarget::Declare(names) | PipeTarget::Assign(names) if names.len() == 1
        );
        let mut empty = true;
        for (key, item) in items {
            empty = false;
            self.step(over.at, 1)?;
            let round = self.scoped(|run| {
                // One variable receives the item, two receive key and item.
                let values = [key, item];
                run.bind(&over.target, &values[usize::from(is_single)..]);
                run.nodes(body, &values[1])
            });
            match round {
                Ok(()) | Err(EvaluationStop::Continue) => {}
                Err(EvaluationStop::Break) => break,
                Err(stop) => return Err(stop),
            }
        }
        if empty { self.nodes(otherwise, dot) } else { Ok(()) }
    }

    fn bind(&mut self, target: &PipeTarget, values: &[TemplateValue]) {
        match target {
            PipeTarget::Nothing => {}
            PipeTarget::Declare(names) => {
                self.variables.extend(names.iter().cloned().zip(values.iter().cloned()));
            }
            PipeTarget::Assign(names) => {
                for (name, value) in names.iter().zip(values) {
                    if let Some(variable) = self.variables.iter_mut().rfind(|(known, _)| known == name) {
                        variable.1 = value.clone();
                    }
                }
            }
        }
    }

    fn call_template(
        &mut self,
        at: usize,
        name: &str,
        with: Option<&Pipe>,
        dot: &TemplateValue,
    ) -> Result<(), EvaluationStop> {
        let argument = match with {
            Some(pipe) => self.pipe(pipe, dot)?,
            None => TemplateValue::Missing,
        };
        let body = self.template.defined.get(name).expect("the parser refuses calls of undefined templates");
        self.step(at, 1)?;
        let outer = std::mem::replace(&mut self.variables, vec![(String::new(), argument.clone())]);
        self.latest_call = at;
        let result = self.nodes(body, &argument);
        self.variables = outer;
        result
    }

    /// Evaluates a pipe and binds its variables.
    fn pipe(&mut self, pipe: &Pipe, dot: &TemplateValue) -> Result<TemplateValue, EvaluationStop> {
        let value = self.commands(pipe, dot)?;
        if let PipeTarget::Declare(names) | PipeTarget::Assign(names) = &pipe.target
            && names.len() != 1
        {
            return Err(TemplateError::new(pipe.at, "only range gives two values").into());
        }
        self.bind(&pipe.target, std::slice::from_ref(&value));
        Ok(value)
    }

    fn commands(&mut self, pipe: &Pipe, dot: &TemplateValue) -> Result<TemplateValue, EvaluationStop> {
        let mut piped = None;
        for command in &pipe.commands {
            piped = Some(self.command(command, dot, piped)?);
        }
        Ok(piped.expect("the parser makes no pipe without a command"))
    }

    fn command(
        &mut self,
        command: &PipeCommand,
        dot: &TemplateValue,
        piped: Option<TemplateValue>,
    ) -> Result<TemplateValue, EvaluationStop> {
        self.step(command.at, 1)?;
        let OperandBase::Function(name) = &command.head.base else { return self.operand(&command.head, dot) };
        let mut values = Vec::with_capacity(command.arguments.len() + 1);
        for argument in &command.arguments {
            let value = self.operand(argument, dot)?;
            // `and` and `or` short-circuit: later arguments are not evaluated.
            let decided = match name.as_str() {
                "and" => !value.truth(),
                "or" => value.truth(),
                _ => false,
            };
            if decided {
                return Ok(value);
            }
            values.push(value);
        }
        // Go passes the piped value last. `.x | default "y"` would then always return "y", which is never intended.
        let piped_at = if name == "default" { 0 } else { values.len() };
        values.splice(piped_at..piped_at, piped);
        match name.as_str() {
            "and" | "or" => values.pop().ok_or_else(|| {
                TemplateError::new(command.at, format!("{name} needs at least one argument")).into()
            }),
            "bash" => self.bash(command.at, &values),
            _ => functions::call(name, values)
                .map_err(|message| TemplateError::new(command.at, message).into()),
        }
    }

    fn bash(&mut self, at: usize, words: &[TemplateValue]) -> Result<TemplateValue, EvaluationStop> {
        let words = functions::words(words).map_err(|message| TemplateError::new(at, message))?;
        if words.first().is_none_or(String::is_empty) {
            let error = TemplateError::new(at, "bash needs the name of a program");
            return Err(error.with_hint("for example {{bash \"git\" \"status\"}}").into());
        }
        if let Some(output) = self.known.get(&words) {
            return Ok(TemplateValue::Text(output.clone()));
        }
        if !self.needs.contains(&words) {
            if self.known.len() + self.needs.len() == SHELL_CALLS_MAX {
                let message = format!("this recipe asks for more than {SHELL_CALLS_MAX} commands");
                return Err(TemplateError::new(at, message).into());
            }
            self.needs.push(words);
        }
        Err(EvaluationStop::Need)
    }

    fn operand(&mut self, operand: &Operand, dot: &TemplateValue) -> Result<TemplateValue, EvaluationStop> {
        let mut value = match &operand.base {
            OperandBase::Dot => dot.clone(),
            OperandBase::Variable(name) => self
                .variables
                .iter()
                .rev()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
                .expect("the parser refuses variables that are not declared"),
            OperandBase::Literal(value) => value.clone(),
            OperandBase::Group(pipe) => self.pipe(pipe, dot)?,
            OperandBase::Function(name) => {
                let at = operand.at;
                let message = format!("the function {name} is used where a value is needed");
                let error = TemplateError::new(at, message);
                return Err(error.with_hint(format!("put the call in parentheses: ({name} …)")).into());
            }
        };
        for field in &operand.fields {
            value = match &value {
                TemplateValue::Map(map) => map.get(field).cloned().unwrap_or(TemplateValue::Missing),
                TemplateValue::Missing => TemplateValue::Missing,
                other => {
                    let message = format!("{} has no field .{field}", other.kind());
                    return Err(TemplateError::new(operand.at, message).into());
                }
            };
        }
        self.step(operand.at, value.steps())?;
        Ok(value)
    }

    fn print(&mut self, pipe: &Pipe, value: &TemplateValue) -> Result<(), EvaluationStop> {
        if *value == TemplateValue::Missing {
            self.warn_of_missing(pipe);
            return if self.scope.go_compat { self.write(pipe.at, "<no value>") } else { Ok(()) };
        }
        self.write(pipe.at, &value.to_string())
    }

    fn warn_of_missing(&mut self, pipe: &Pipe) {
        let [PipeCommand { head, .. }] = pipe.commands.as_slice() else { return };
        let Some(name) = head.fields.first().filter(|name| !self.scope.optional.contains(*name)) else {
            return;
        };
        let warning = format!("there is no variable .{name}; it was left empty");
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    fn write(&mut self, at: usize, text: &str) -> Result<(), EvaluationStop> {
        if self.out.len() + text.len() > OUTPUT_BYTES_MAX {
            let message = format!("the rendered text has more than {OUTPUT_BYTES_MAX} bytes");
            return Err(TemplateError::new(at, message).into());
        }
        self.step(at, text.len() as u64 / 1024)?;
        self.out.push_str(text);
        Ok(())
    }
}
