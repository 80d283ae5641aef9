//! Writes a whole conversation: one task after another, as long as is asked for, with the facts told at their
//! places. The same seed writes the same conversation.

use std::collections::{HashMap, HashSet, VecDeque};

use anyhow::{Context, Result, ensure};
use epitome::thread::{Change, OutcomeStatus, PlanPriority, PlanStatus, PlanStep};
use epitome::tokens::Ruler;
use serde_json::{Value, json};

use super::judge::words_of;
use super::noise;
use super::phrases::Half;
use super::plant::{Act, Fact, Mention, Plant, Voice, plant};
use super::session::{Session, Step, ended, outcome, replied, ruler, said, tokens};
use super::words::Names;

/// How often other names are tried for facts in a conversation that knows some of them.
const NAMES_TRIES: u64 = 100;

/// What to write.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    pub seed: u64,
    /// About how long it is.
    pub tokens: u64,
    /// Facts of each kind.
    pub each: usize,
    pub half: Half,
}

pub fn generate(order: Order) -> Session {
    let mut names = Names::new(order.seed);
    let plants = plant(&mut names, order.half, order.each);
    let mut writer = Writer::new(names, plants, order.tokens);
    while writer.taken < order.tokens || !writer.due.is_empty() {
        writer.task();
    }
    let half = match order.half {
        Half::Open => "open",
        Half::HeldOut => "held-out",
    };
    writer.finish(format!("{half}-{}k-{}", order.tokens / 1_000, order.seed))
}

/// A conversation that others had, with `each` facts of each kind planted into it: behind each of its turns, what is
/// due there is told in turns of its own. No name of a fact stands in it otherwise; it is an error if none is left.
pub fn planted(real: &Session, seed: u64, each: usize, half: Half) -> Result<Session> {
    let words: Vec<String> = real.steps.iter().filter_map(|step| words_of(&step.change)).collect();
    let is_free = |plant: &Plant| !words.iter().any(|words| words.contains(&plant.fact.anchor));
    let mut tries = (0..NAMES_TRIES).map(|nth| {
        // Far from the seeds of other conversations.
        let mut names = Names::new(seed.wrapping_add(nth << 32));
        let plants = plant(&mut names, half, each);
        (names, plants)
    });
    let (names, plants) = tries
        .find(|(_, plants)| plants.iter().all(is_free))
        .with_context(|| format!("{}: names of planted facts stand in it already", real.name))?;
    let mut writer = Writer::new(names, plants, real.tokens);
    writer.calls = real.steps.iter().map(|step| calls_until(&step.change)).max().unwrap_or(0);
    for step in &real.steps {
        let mut step = step.clone();
        if let Change::Planned { steps } = &mut step.change {
            // The agent would not drop a task from its list unsaid.
            steps.extend(writer.open.iter().map(|task| plan_step(task.clone(), PlanStatus::Pending)));
        }
        let is_end = matches!(step.change, Change::TurnEnded { .. });
        writer.push(step);
        while is_end && writer.tell() {}
    }
    ensure!(writer.due.is_empty(), "{}: no turn is in it, so nothing can be told between two", real.name);
    Ok(writer.finish(real.name.clone()))
}

/// One more than the number of any call of this reply whose id is of the form that ours have.
fn calls_until(change: &Change) -> usize {
    let Change::Replied { message, .. } = change else { return 0 };
    let numbers = message.calls().filter_map(|call| call.id.0.strip_prefix("call_")?.parse::<u32>().ok());
    numbers.max().map_or(0, |number| number as usize + 1)
}

struct Due {
    fact: usize,
    mention: Mention,
    pin: bool,
}

struct Writer {
    names: Names,
    facts: Vec<Fact>,
    due: VecDeque<Due>,
    steps: Vec<Step>,
    taken: u64,
    /// Of these, what `tell` added to a conversation of others.
    added: u64,
    wanted: u64,
    ruler: Ruler,
    calls: usize,
    /// Where each fact was told last: no message tells two values of one subject.
    told: HashMap<usize, usize>,
    /// The tokens before each fact, or before its newest value.
    depths: HashMap<usize, u64>,
    /// Tasks that are on the agent's list and stay there.
    open: Vec<String>,
}

impl Writer {
    fn new(names: Names, plants: Vec<Plant>, wanted: u64) -> Writer {
        let mut due: Vec<Due> = Vec::new();
        let mut facts: Vec<Fact> = Vec::new();
        for (fact, plant) in plants.into_iter().enumerate() {
            let pin = plant.fact.pinned;
            due.extend(plant.mentions.into_iter().map(|mention| Due { fact, pin, mention }));
            facts.push(plant.fact);
        }
        due.sort_by(|a, b| a.mention.depth.total_cmp(&b.mention.depth));
        Writer {
            names,
            facts,
            due: due.into(),
            steps: Vec::new(),
            taken: 0,
            added: 0,
            wanted,
            ruler: ruler(),
            calls: 0,
            told: HashMap::new(),
            depths: HashMap::new(),
            open: Vec::new(),
        }
    }

    fn finish(mut self, name: String) -> Session {
        for (fact, depth) in self.depths {
            self.facts[fact].depth = depth as f64 / self.taken as f64;
        }
        Session { name, steps: self.steps, facts: self.facts, tokens: self.taken }
    }

    /// A turn that tells some of what is due, and little else. Returns whether anything was.
    fn tell(&mut self) -> bool {
        let (before, due) = (self.taken, self.due.len());
        let told = self.told_by_person(1);
        let act = self.next(Voice::Tool);
        let by_agent = self.next(Voice::Agent);
        if !told.is_empty() || act.is_some() || by_agent.is_some() {
            let said_first = if told.is_empty() { noise::reaction(&mut self.names) } else { told.concat() };
            self.push(Step::plain(said(said_first)));
            if let Some(due) = act {
                let (text, done) = (noise::progress(&mut self.names), self.act(due.mention.act));
                self.speak(text, vec![done]);
            }
            let text = by_agent.map_or_else(|| noise::closing(&mut self.names), |due| due.mention.text);
            self.push(Step::plain(replied(text, Vec::new(), 0)));
            self.push(Step::plain(ended()));
        }
        self.added += self.taken - before;
        self.due.len() < due
    }

    /// A person's request, rounds of calls, an answer, sometimes a word about it.
    fn task(&mut self) {
        self.person(true);
        for _ in 0..self.names.rng.usize(2..7) {
            self.round();
        }
        if self.names.rng.u8(..3) == 0 {
            self.trouble_and_its_end();
        }
        self.answer();
        if self.names.rng.u8(..3) > 0 {
            self.person(false);
            for _ in 0..self.names.rng.usize(0..3) {
                self.round();
            }
            self.answer();
        }
    }

    /// The next fact that this voice is to tell, if its time has come.
    fn next(&mut self, voice: Voice) -> Option<Due> {
        let reached = (self.taken - self.added) as f64 / self.wanted as f64;
        // The values of one subject keep their order, whoever tells them.
        let mut waiting = HashSet::new();
        let at = self.due.iter().position(|due| {
            let is_next = waiting.insert(due.fact);
            let is_due = due.mention.voice == voice && due.mention.depth <= reached;
            is_next && is_due && self.told.get(&due.fact) != Some(&self.steps.len())
        })?;
        let due = self.due.remove(at)?;
        self.told.insert(due.fact, self.steps.len());
        self.depths.insert(due.fact, self.taken);
        Some(due)
    }

    fn person(&mut self, asks: bool) {
        let mut sentences =
            vec![if asks { noise::request(&mut self.names) } else { noise::reaction(&mut self.names) }];
        for _ in 0..self.names.rng.usize(0..3) {
            sentences.push(noise::aside(&mut self.names));
        }
        for text in self.told_by_person(3) {
            let at = self.names.rng.usize(0..=sentences.len());
            sentences.insert(at, text);
        }
        let gap = self.names.pick(&["\n\n", " ", "\n"]);
        if self.names.rng.u8(..6) == 0 {
            let paste = noise::log(&mut self.names, 30);
            sentences.push(format!("Here's what I see:\n\n{paste}"));
        }
        self.push(Step::plain(said(sentences.join(gap))));
    }

    /// At most so many things that the person is to tell now, in one message.
    fn told_by_person(&mut self, most: usize) -> Vec<String> {
        let mut told = Vec::new();
        while told.len() < most
            && let Some(due) = self.next(Voice::Person)
        {
            // What is pinned is said alone, so that a pin costs what it is worth.
            if due.pin {
                self.push(Step { change: said(due.mention.text), pin: true });
                self.push(Step::plain(replied("Understood.".to_owned(), Vec::new(), 0)));
                self.push(Step::plain(ended()));
                continue;
            }
            told.push(due.mention.text);
        }
        told
    }

    /// Some words, one to three calls, their outcomes.
    fn round(&mut self) {
        let mut text = noise::progress(&mut self.names);
        if self.names.rng.bool()
            && let Some(due) = self.next(Voice::Agent)
        {
            text = format!("{}\n\n{text}", due.mention.text);
        }
        let mut done: Vec<Done> = Vec::new();
        for _ in 0..self.names.rng.usize(1..4) {
            done.push(self.call());
        }
        if let Some(due) = self.next(Voice::Tool) {
            done.push(self.act(due.mention.act));
        }
        self.speak(text, done);
    }

    fn speak(&mut self, text: String, done: Vec<Done>) {
        let first = self.calls;
        self.calls += done.len();
        let calls = done.iter().map(|done| (done.tool, done.input.clone())).collect();
        self.push(Step::plain(replied(text, calls, first)));
        for (at, Done { text, exit, plan, .. }) in done.into_iter().enumerate() {
            let (status, text, raw) = match exit {
                None => (OutcomeStatus::Completed, text, None),
                Some(code) => {
                    let raw = json!({"stdout": text, "stderr": "", "exitCode": code});
                    match code {
                        0 => (OutcomeStatus::Completed, text, Some(raw)),
                        _ => (
                            OutcomeStatus::Failed,
                            format!("{}\n[exit code {code}]", text.trim_end()),
                            Some(raw),
                        ),
                    }
                }
            };
            self.push(Step::plain(outcome(first + at, status, text, raw)));
            if let Some(steps) = plan {
                self.push(Step::plain(Change::Planned { steps }));
            }
        }
    }

    /// A call of no concern.
    fn call(&mut self) -> Done {
        let names = &mut self.names;
        match names.rng.u8(..12) {
            0..=4 => {
                let path = names.path();
                let lines = names.rng.usize(20..150);
                let text = noise::file(names, &path, lines);
                Done::of("file_read", json!({"file_path": path}), text)
            }
            5 | 6 => {
                let pattern = names.ident();
                let matches = names.rng.usize(2..25);
                Done::of("grep_tool", json!({"pattern": pattern}), noise::grep(names, matches))
            }
            7 => {
                let count = names.rng.usize(4..120);
                let text = noise::tests(names, count, None);
                Done::ran("Run the tests", format!("cargo test {}", names.ident()), text, 0)
            }
            8 => {
                let lines = names.rng.usize(5..90);
                let text = noise::log(names, lines);
                let ident = names.ident();
                let command = names.pick(&["make", "docker logs", "npm run", "journalctl -u"]);
                Done::ran("See what it prints", format!("{command} {ident}"), text, 0)
            }
            9 => {
                let hunks = names.rng.usize(1..9);
                Done::ran("Show the changes", "git diff".to_owned(), noise::diff(names, hunks), 0)
            }
            10 => {
                let commits = names.rng.usize(5..30);
                Done::ran(
                    "Show the history",
                    format!("git log --oneline -{commits}"),
                    noise::history(names, commits),
                    0,
                )
            }
            _ => {
                let (path, old, new) = (names.path(), names.ident(), names.ident());
                edit(path, format!("    {old}.wait();"), format!("    {new}.wait_for(limit)?;"))
            }
        }
    }

    /// A call that tells a fact.
    fn act(&mut self, act: Act) -> Done {
        let names = &mut self.names;
        match act {
            Act::None => unreachable!("what a tool tells is done by a call"),
            Act::Edit { path, old, new } => edit(path, old, new),
            Act::Fail { line } => {
                let before = noise::log(names, 12);
                let command = format!("make check-{}", names.ident());
                let count = names.rng.usize(4..30);
                let text = match names.rng.bool() {
                    true => format!("{before}{}", noise::tests(names, count, Some(&line))),
                    false => format!("{before}{line}\n"),
                };
                Done::ran("Run the checks", command, text, 1)
            }
            Act::Print { line } => {
                let before = noise::log(names, 4);
                let command = format!("./scripts/{}.sh", names.ident());
                Done::ran("Set it up", command, format!("{before}{line}\n"), 0)
            }
            Act::Todo { task } => {
                self.open.push(task);
                self.todos()
            }
        }
    }

    /// The agent's list: what is done, and what stays open.
    fn todos(&mut self) -> Done {
        let mut steps: Vec<PlanStep> = (0..self.names.rng.usize(1..4))
            .map(|_| plan_step(format!("look through `{}`", self.names.ident()), PlanStatus::Completed))
            .collect();
        steps.push(plan_step(format!("change `{}`", self.names.ident()), PlanStatus::InProgress));
        steps.extend(self.open.iter().map(|task| plan_step(task.clone(), PlanStatus::Pending)));
        let todos: Vec<Value> = steps
            .iter()
            .map(|step| {
                let status = match step.status {
                    PlanStatus::Pending => "pending",
                    PlanStatus::InProgress => "in_progress",
                    PlanStatus::Completed => "completed",
                };
                json!({"content": step.content, "status": status, "priority": "medium"})
            })
            .collect();
        let text = format!("The list has {} tasks.", steps.len());
        let done = Done::of("todo_write", json!({"todos": todos}), text);
        Done { plan: Some(steps), ..done }
    }

    /// A command fails, something is changed, the same command passes.
    fn trouble_and_its_end(&mut self) {
        let names = &mut self.names;
        let command = format!("make {}", names.ident());
        let error = noise::passing_error(names);
        let count = names.rng.usize(4..30);
        let failing = noise::tests(names, count, Some(&error));
        let passing = noise::tests(names, count, None);
        let (path, old, new) = (names.path(), names.ident(), names.ident());
        self.speak("Running it.".to_owned(), vec![Done::ran("Run it", command.clone(), failing, 1)]);
        self.speak("I see, that's my mistake.".to_owned(), vec![edit(path, old, new)]);
        self.speak("Again.".to_owned(), vec![Done::ran("Run it again", command, passing, 0)]);
        if !self.open.is_empty() && self.names.rng.bool() {
            let todos = self.todos();
            self.speak(String::new(), vec![todos]);
        }
    }

    fn answer(&mut self) {
        let mut parts = vec![noise::closing(&mut self.names)];
        for _ in 0..2 {
            if let Some(due) = self.next(Voice::Agent) {
                let at = self.names.rng.usize(0..=parts.len());
                parts.insert(at, due.mention.text);
            }
        }
        self.push(Step::plain(replied(parts.join("\n\n"), Vec::new(), 0)));
        self.push(Step::plain(ended()));
    }

    fn push(&mut self, step: Step) {
        self.taken += tokens(&self.ruler, &step.change);
        self.steps.push(step);
    }
}

fn plan_step(content: String, status: PlanStatus) -> PlanStep {
    PlanStep { content, status, priority: PlanPriority::Medium }
}

/// A call and what came of it.
struct Done {
    tool: &'static str,
    input: Value,
    text: String,
    /// Of a command, its exit code.
    exit: Option<i32>,
    plan: Option<Vec<PlanStep>>,
}

impl Done {
    fn of(tool: &'static str, input: Value, text: String) -> Done {
        Done { tool, input, text, exit: None, plan: None }
    }

    fn ran(description: &str, command: String, text: String, code: i32) -> Done {
        let input = json!({"description": description, "command": command});
        Done { exit: Some(code), ..Done::of("bash", input, text) }
    }
}

fn edit(path: String, old: String, new: String) -> Done {
    let text = format!("Edited {path} at line {}.", 11 + old.len() * 3);
    Done::of("file_edit", json!({"file_path": path, "old_text": old, "new_text": new}), text)
}
