//! JSON in a text, and whether it fits a schema. Nothing is fetched: a schema that refers to another
//! document is refused.

use boon::{CompileError, Compiler, ErrorKind, SchemaIndex, Schemas, UrlLoader, ValidationError};
use serde_json::{Map, Value};

use super::{files, params};
use epitome_tools::Workspace;

/// Bytes of a schema's file.
const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Bytes of a JSON text that is checked.
const JSON_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Faults that are named; one slip often makes many.
const FAULTS_MAX: usize = 10;
/// Characters of one fault: it quotes what it is about.
const FAULT_CHARS_MAX: usize = 300;
/// Share of a quotient that is lost when two decimal fractions are divided as binary ones.
const ROUNDING_MAX: f64 = 4.0 * f64::EPSILON;
/// The address that references inside of a schema are relative to.
const SCHEMA_URL: &str = "schema:/given";

/// What happens when something does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFail {
    /// The model is told.
    Continue,
    /// The person is told.
    Notice,
}

pub fn on_fail(params: &Map<String, Value>) -> Result<OnFail, String> {
    let choices = [("continue", OnFail::Continue), ("notice", OnFail::Notice)];
    Ok(params::choice(params, "on_fail", &choices)?.unwrap_or(OnFail::Continue))
}

/// A schema as a recipe gives it.
pub enum Schema {
    Inline(Box<Validator>),
    /// Read when it is used: the recipe's own work may be to change it.
    File(String),
}

impl Schema {
    pub fn read(params: &Map<String, Value>) -> Result<Schema, String> {
        match params::given(params, "schema") {
            Some(schema @ Value::Object(_)) => Ok(Schema::Inline(Box::new(compile(schema)?))),
            Some(Value::String(path)) if !path.trim().is_empty() => Ok(Schema::File(path.clone())),
            _ => Err("\"schema\" must be a JSON Schema or the path of a file with one".to_owned()),
        }
    }

    pub fn validator(self, workspace: &Workspace) -> Result<Validator, String> {
        match self {
            Schema::Inline(validator) => Ok(*validator),
            Schema::File(path) => {
                let bytes = files::read(&path, workspace)?;
                if bytes.len() > SCHEMA_BYTES_MAX {
                    return Err(format!("{path} has more than the {SCHEMA_BYTES_MAX} bytes of a schema"));
                }
                let schema = serde_json::from_slice(&bytes)
                    .map_err(|error| format!("the schema {path} is not valid JSON: {error}"))?;
                compile(&schema).map_err(|why| format!("{path}: {why}"))
            }
        }
    }
}

/// A schema that values are held against.
pub struct Validator {
    schemas: Schemas,
    root: SchemaIndex,
}

/// Loads nothing: neither the network nor a file that only the schema names.
struct NoOthers;

impl UrlLoader for NoOthers {
    fn load(&self, _url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err("other documents are not read".into())
    }
}

fn compile(schema: &Value) -> Result<Validator, String> {
    let mut compiler = Compiler::new();
    compiler.use_loader(Box::new(NoOthers));
    let mut schemas = Schemas::new();
    let unusable = |error: CompileError| {
        format!("this is no JSON Schema that can be used: {}", short(&error.to_string()))
    };
    compiler.add_resource(SCHEMA_URL, schema.clone()).map_err(unusable)?;
    let root = compiler.compile(SCHEMA_URL, &mut schemas).map_err(unusable)?;
    Ok(Validator { schemas, root })
}

/// What is wrong with a text that should be JSON of a kind, one line each; empty when it fits.
pub fn faults(text: &str, validator: &Validator) -> Vec<String> {
    match found_in(text) {
        Ok(value) => faults_of(&value, validator),
        Err(why) => vec![why],
    }
}

pub fn faults_of(value: &Value, validator: &Validator) -> Vec<String> {
    let Err(error) = validator.schemas.validate(value, validator.root) else { return Vec::new() };
    let mut faults = Vec::new();
    let mut pending = vec![&error];
    while let Some(error) = pending.pop().filter(|_| faults.len() < FAULTS_MAX) {
        if is_rounding(error) {
            continue;
        }
        if error.causes.is_empty() {
            faults.push(fault(error));
        }
        // Backwards onto the stack, so that they are told in their order.
        pending.extend(error.causes.iter().rev());
    }
    faults
}

/// Whether nothing is wrong but that binary fractions are not exact: 19.99 is a multiple of 0.01.
fn is_rounding(error: &ValidationError) -> bool {
    match &error.kind {
        ErrorKind::MultipleOf { got, want } => {
            let parts = got.as_f64().zip(want.as_f64()).map(|(got, want)| got / want);
            parts.is_some_and(|parts| (parts - parts.round()).abs() <= ROUNDING_MAX * parts.abs())
        }
        // One alternative that fits is enough.
        ErrorKind::AnyOf | ErrorKind::OneOf(None) => error.causes.iter().any(is_rounding),
        _ => !error.causes.is_empty() && error.causes.iter().all(is_rounding),
    }
}

fn fault(error: &ValidationError) -> String {
    let place = error.instance_location.to_string();
    let place = if place.is_empty() { "/".to_owned() } else { place };
    format!("{place}: {}", short(&error.kind.to_string()))
}

/// The JSON that a text is, or that its first fenced block which is JSON holds.
fn found_in(text: &str) -> Result<Value, String> {
    if text.len() > JSON_BYTES_MAX {
        return Err(format!("it has more than {JSON_BYTES_MAX} bytes"));
    }
    let whole = match serde_json::from_str(text.trim()) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let mut first = None;
    for block in fenced(text) {
        match serde_json::from_str(&block) {
            Ok(value) => return Ok(value),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(format!("it is not valid JSON: {}", first.unwrap_or(whole)))
}

/// The fenced blocks of a Markdown text.
fn fenced(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, String)> = None;
    for line in text.lines() {
        let bare = line.trim();
        let ticks = bare.len() - bare.trim_start_matches('`').len();
        match &mut open {
            Some((fence, block)) if ticks >= fence.len() && bare.len() == ticks => {
                blocks.push(std::mem::take(block));
                open = None;
            }
            Some((_, block)) => {
                block.push_str(line);
                block.push('\n');
            }
            None if ticks >= 3 => open = Some((&bare[..ticks], String::new())),
            None => {}
        }
    }
    blocks.extend(open.map(|(_, block)| block));
    blocks
}

fn short(text: &str) -> String {
    match text.char_indices().nth(FAULT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
