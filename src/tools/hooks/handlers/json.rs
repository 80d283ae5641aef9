//! Finds JSON in text and validates it against a schema. Nothing is fetched: a schema that refers to another
//! document is rejected.

use boon::{CompileError, Compiler, ErrorKind, SchemaIndex, Schemas, UrlLoader, ValidationError};
use serde_json::Value;

use super::HandlerError;
use super::{HandlerParams, files, params};
use epitome_thread::visible::shortened;
use epitome_tools::Workspace;

/// Maximum size of a schema file in bytes.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Maximum size of a validated JSON text in bytes.
const JSON_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum faults reported; one mistake often causes many.
const FAULTS_MAX: usize = 10;
/// Maximum characters of one fault, which quotes the value that it is about.
const FAULT_CHARS_MAX: usize = 300;
/// Relative rounding error of a quotient of two decimal fractions stored as binary floats.
const ROUNDING_MAX: f64 = 4.0 * f64::EPSILON;
/// The base URL of references inside a schema.
const SCHEMA_URL: &str = "schema:/given";

/// The effect of a failed validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFail {
    /// The model is informed.
    Continue,
    /// The user is informed.
    Notice,
}

pub fn on_fail(params: &HandlerParams) -> Result<OnFail, HandlerError> {
    let choices = [("continue", OnFail::Continue), ("notice", OnFail::Notice)];
    Ok(params::choice(params, "on_fail", &choices)?.unwrap_or(OnFail::Continue))
}

/// A schema as given in a recipe.
pub enum Schema {
    Inline(Box<Validator>),
    /// Read when it is used: the recipe's own work may change it.
    File(String),
}

impl Schema {
    pub fn read(params: &HandlerParams) -> Result<Schema, HandlerError> {
        match params::given(params, "schema") {
            Some(schema @ Value::Object(_)) => Ok(Schema::Inline(Box::new(compile(schema)?))),
            Some(Value::String(path)) if !path.trim().is_empty() => Ok(Schema::File(path.clone())),
            _ => Err(HandlerError::new("\"schema\" must be a JSON Schema or the path of a file with one")),
        }
    }

    pub fn validator(self, workspace: &Workspace) -> Result<Validator, HandlerError> {
        match self {
            Schema::Inline(validator) => Ok(*validator),
            Schema::File(path) => {
                let bytes = files::read(&path, workspace)?;
                if bytes.len() > SCHEMA_BYTES_MAX {
                    return Err(HandlerError::new(format!(
                        "{path} has more than the {SCHEMA_BYTES_MAX} bytes of a schema"
                    )));
                }
                let schema = serde_json::from_slice(&bytes)
                    .map_err(|error| format!("the schema {path} is not valid JSON: {error}"))?;
                compile(&schema).map_err(|why| HandlerError::new(format!("{path}: {why}")))
            }
        }
    }
}

/// A compiled schema.
pub struct Validator {
    schemas: Schemas,
    root: SchemaIndex,
}

/// Loads nothing: neither from the network nor from files referenced by the schema.
struct NoOthers;

impl UrlLoader for NoOthers {
    fn load(&self, _url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err("other documents are not read".into())
    }
}

/// Compiles a schema; the error says why that is not possible.
pub fn compile(schema: &Value) -> Result<Validator, HandlerError> {
    let mut compiler = Compiler::new();
    compiler.use_loader(Box::new(NoOthers));
    let mut schemas = Schemas::new();
    let unusable = |error: CompileError| {
        let why = shortened(&error.to_string(), FAULT_CHARS_MAX);
        HandlerError::new(format!("this is not a usable JSON Schema: {why}"))
    };
    compiler.add_resource(SCHEMA_URL, schema.clone()).map_err(unusable)?;
    let root = compiler.compile(SCHEMA_URL, &mut schemas).map_err(unusable)?;
    Ok(Validator { schemas, root })
}

/// The faults of a text that should be JSON matching the schema, one line each; empty if it is valid.
pub fn faults(text: &str, validator: &Validator) -> Vec<String> {
    match found_in(text) {
        Ok(value) => faults_of(&value, validator),
        Err(why) => vec![why.to_string()],
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
        // Pushed in reverse, so that they are reported in order.
        pending.extend(error.causes.iter().rev());
    }
    faults
}

/// Whether the error is only due to binary floating point: 19.99 is a multiple of 0.01.
fn is_rounding(error: &ValidationError) -> bool {
    match &error.kind {
        ErrorKind::MultipleOf { got, want } => {
            let parts = got.as_f64().zip(want.as_f64()).map(|(got, want)| got / want);
            parts.is_some_and(|parts| (parts - parts.round()).abs() <= ROUNDING_MAX * parts.abs())
        }
        // One matching alternative is enough.
        ErrorKind::AnyOf | ErrorKind::OneOf(None) => error.causes.iter().any(is_rounding),
        _ => !error.causes.is_empty() && error.causes.iter().all(is_rounding),
    }
}

fn fault(error: &ValidationError) -> String {
    let place = error.instance_location.to_string();
    let place = if place.is_empty() { "/".to_owned() } else { place };
    format!("{place}: {}", shortened(&error.kind.to_string(), FAULT_CHARS_MAX))
}

/// Parses the text as JSON, or else its first fenced block that is JSON.
pub fn found_in(text: &str) -> Result<Value, HandlerError> {
    if text.len() > JSON_BYTES_MAX {
        return Err(HandlerError::new(format!("it has more than {JSON_BYTES_MAX} bytes")));
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
    Err(HandlerError::new(format!("it is not valid JSON: {}", first.unwrap_or(whole))))
}

/// The fenced code blocks of a Markdown text.
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
