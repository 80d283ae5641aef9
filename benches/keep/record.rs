//! Lets a real model write summaries of some of our conversations (`--record URL MODEL`), by the recipe that a
//! compaction uses, and keeps them with what was asked. Speaks to any server of Chat Completions over plain HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use epitome::compaction::extract;
use epitome::recipe::catalog::Catalog;
use serde_json::{Value, json};

use crate::bench::generate::{Order, generate};
use crate::bench::phrases::Half;
use crate::bench::recorded::{Recorded, prompt};

/// The conversations: as short as they can be with a fact of each kind, some 10,000 to 17,000 tokens.
const SEEDS: [u64; 3] = [11, 12, 13];
const TOKENS: u64 = 2_500;
const EACH: usize = 1;
/// What the model may write.
const SUMMARY_TOKENS: u64 = 900;
/// How long one summary may take: small models on a processor read some 20 tokens a second.
const SECONDS_MAX: u64 = 3_600;

pub fn run(url: &str, model: &str, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for seed in SEEDS {
        let session = generate(Order { seed, tokens: TOKENS, each: EACH, half: Half::Open });
        let instruction = instruction()?;
        let reply = ask(url, model, &prompt(&session, &instruction))?;
        let summary = extract(&reply).with_context(|| format!("no summary is in {reply:?}"))?;
        let recorded = Recorded { model: model.to_owned(), instruction, summary, session };
        let safe: String = model.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let file = folder.join(format!("{safe}-{seed}.json"));
        std::fs::write(&file, serde_json::to_string_pretty(&recorded)? + "\n")?;
        println!("{}: {} bytes of summary", file.display(), recorded.summary.len());
    }
    Ok(())
}

/// The text of the recipe, without what is only said where a person asks for something special.
fn instruction() -> Result<String> {
    let catalog = Catalog::built_in();
    let body = &catalog.find("compact").context("the recipe is built in")?.body;
    let behind = body.split_once("-}}").map_or(body.as_str(), |(_, text)| text);
    Ok(behind.split("{{- if .input}}").next().unwrap_or(behind).trim().to_owned())
}

fn ask(url: &str, model: &str, prompt: &str) -> Result<String> {
    let rest = url.strip_prefix("http://").context("the address must begin with http://")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, "v1"));
    let body = json!({
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": SUMMARY_TOKENS,
        "temperature": 0,
    })
    .to_string();
    let mut stream = TcpStream::connect(host).with_context(|| format!("nobody listens on {host}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(SECONDS_MAX)))?;
    write!(
        stream,
        "POST /{}/chat/completions HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        path.trim_end_matches('/'),
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the model's answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no body")?;
    if !head.contains(" 200 ") {
        bail!("{}: {body}", head.lines().next().unwrap_or_default());
    }
    let body: Value = serde_json::from_str(body).with_context(|| format!("not JSON: {body:?}"))?;
    let text = body["choices"][0]["message"]["content"].as_str();
    Ok(text.with_context(|| format!("no text in {body}"))?.to_owned())
}
