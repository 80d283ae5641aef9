//! Serves the calls of resident hooks. Each is checked by the same guards as a hook's result, and recorded in the trail.

use std::ffi::OsString;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Session;
use crate::NoticeSeverity;
use crate::WorkerFault;
use crate::background::BackgroundResult;
use crate::child::news::{ChildNews, NewsSender};
use crate::complete::{complete, find_endpoint};
use crate::core::Core;
use crate::cpu_worker;
use crate::hook_host::calls::{ServiceCall, ServiceReply};
use crate::refusal::HookRefusal;
use crate::services::SessionServices;
use epitome_compaction::CompactionDecision;
use epitome_config::Settings;
use epitome_hooks::hook::PayloadMessages;
use epitome_hooks::messages;
use epitome_hooks::output::Utterance;
use epitome_provider::endpoint::Endpoint;
use epitome_provider::models;
use epitome_thread::{Change, HookRun, HookRunResult, ModelName, Role, Trigger, Usage, View};

/// Maximum tokens of a completion.
const COMPLETION_TOKENS_MAX: u32 = 4_096;

impl Core {
    /// Returns messages of the view or of the complete log: by id, by a range of entries, by kind.
    fn read_context(&self, params: &Map<String, Value>) -> Result<Value, HookRefusal> {
        let view = match params.get("from").and_then(Value::as_str).unwrap_or("view") {
            "view" => self.thread.view().clone(),
            // Without the layers that compactions and hooks have added.
            "log" => {
                let entries = self.thread.entries();
                let layers = entries.iter().filter(|entry| entry.change.is_layer()).map(|entry| entry.seq);
                View::fold(entries, &layers.collect())
            }
            other => {
                return Err(not_a_choice("\"from\"", "view or log", other));
            }
        };
        let ids: Option<Vec<&str>> = params
            .get("ids")
            .and_then(Value::as_array)
            .map(|ids| ids.iter().filter_map(Value::as_str).collect());
        let kind = params.get("kind").and_then(Value::as_str);
        let bound = |at: usize| params.get("range").and_then(|range| range.get(at)).and_then(entry_number);
        let (from, to) = (bound(0).unwrap_or(0), bound(1).unwrap_or(u64::MAX));
        let fits = |message: &Value| {
            let id = message["id"].as_str().unwrap_or_default();
            let number = entry_number(&message["id"]).unwrap_or_default();
            ids.as_ref().is_none_or(|ids| ids.contains(&id))
                && kind.is_none_or(|kind| message["kind"].as_str() == Some(kind))
                && (from..=to).contains(&number)
        };
        let found: Vec<Value> =
            messages::messages(&view, PayloadMessages::Full).into_iter().filter(fits).collect();
        Ok(json!({ "messages": found, "revision": self.thread.view().revision().0 }))
    }
}

impl Session {
    pub(super) fn serve(&mut self, call: ServiceCall) {
        let ServiceCall { hook, method, params, answer } = call;
        let none = Map::new();
        let params = params.as_object().unwrap_or(&none);
        let served = match method.as_str() {
            "context.read" => self.core.read_context(params),
            "notice" => match params.get("text").and_then(Value::as_str) {
                Some(text) => {
                    self.core.notify(NoticeSeverity::Info, format!("{hook}: {text}"));
                    Ok(Value::Null)
                }
                None => Err(HookRefusal::Missing { of: "notice", what: "\"text\"" }),
            },
            "compact" => match params.get("mode").and_then(Value::as_str).unwrap_or("do") {
                "do" => self.service_compact(&hook),
                "plan" => return self.service_plan(hook, None, answer),
                "dry_run" => {
                    return self.service_plan(
                        hook,
                        Some(self.recipes.summary_instruction(&self.core)),
                        answer,
                    );
                }
                other => Err(not_a_choice("\"mode\"", "plan, dry_run or do", other)),
            },
            "recipe.run" => return self.service_recipe(hook, params, answer),
            "model.complete" | "model.judge" => return self.service_model(hook, &method, params, answer),
            other => Err(HookRefusal::NoMethod(other.to_owned())),
        };
        self.serve_now(&hook, &method, served, answer);
    }

    fn serve_now(
        &mut self,
        hook: &str,
        method: &str,
        served: Result<Value, HookRefusal>,
        answer: ServiceReply,
    ) {
        self.serve_noted(hook, method, served.as_ref().err());
        let _ = answer.send(served.map_err(Into::into));
    }

    fn serve_noted(&mut self, hook: &str, method: &str, refusal: Option<&HookRefusal>) {
        let run = HookRun {
            hook: hook.to_owned(),
            event: "service".to_owned(),
            end: "answered".to_owned(),
            asked: method.to_owned(),
            verdict: if refusal.is_none() { HookRunResult::Done } else { HookRunResult::Refused },
            remarks: refusal.map(ToString::to_string).into_iter().collect(),
            ..HookRun::default()
        };
        self.commit_all(vec![Change::Hooked { event: "service".to_owned(), runs: vec![run] }]);
    }

    fn service_compact(&mut self, hook: &str) -> Result<Value, HookRefusal> {
        if self.core.lineage.is_child() {
            return Err(HookRefusal::InCallback("is not compacted by hooks"));
        }
        if self.work.is_none() {
            return Err(HookRefusal::NoTurn("; the next one can be asked"));
        }
        self.hooks.want_compaction(hook);
        Ok(json!({ "status": "at the next safe point" }))
    }

    /// Answers with what a compaction would do, and with its instruction for a model.
    fn service_plan(&mut self, hook: String, instruction: Option<String>, answer: ServiceReply) {
        let (deciding, ruler, view) = (
            self.compactor.deciding(&mut self.core, None, Trigger::Hook),
            self.core.ruler(),
            self.core.thread.view().clone(),
        );
        let planning = move || {
            let (_, decision) = deciding();
            let replaced = match &decision {
                CompactionDecision::Summarise(plan) => view.replaced_by(plan.through),
                CompactionDecision::Nothing(_) | CompactionDecision::Prune(_) => View::default(),
            };
            let mut plan = json!({
                "possible": !matches!(decision, CompactionDecision::Nothing(_)),
                "entries": replaced.entries().len(),
                "tokens": ruler.view(&replaced),
            });
            if let Some(instruction) = instruction {
                plan["instruction"] = Value::from(instruction);
            }
            plan
        };
        self.core.start(cpu_worker::run(planning), move |plan| BackgroundResult::ServicePlanned {
            hook,
            plan,
            answer,
        });
    }

    /// Answers a hook that has asked what a compaction would do.
    pub(super) fn service_planned(&mut self, hook: &str, plan: Option<Value>, answer: ServiceReply) {
        let plan = plan.ok_or_else(|| WorkerFault.into());
        self.serve_now(hook, "compact", plan, answer);
    }

    /// Counts a call that costs money; an error if the limit is reached or no turn runs.
    fn count_paid_call(&mut self) -> Result<(), HookRefusal> {
        if self.work.is_none() {
            return Err(HookRefusal::NoTurn(", so nothing is paid for"));
        }
        self.hooks.count_paid_call()
    }

    fn service_recipe(&mut self, hook: String, params: &Map<String, Value>, answer: ServiceReply) {
        let name = params.get("name").and_then(Value::as_str).unwrap_or_default();
        let run = self.count_paid_call().and_then(|()| {
            if self.core.lineage.is_child() {
                return Err(HookRefusal::InCallback("starts no other recipe"));
            }
            let recipe = self.recipes.catalog().find(name).cloned();
            let recipe = recipe.ok_or_else(|| HookRefusal::NoRecipe(name.to_owned()))?;
            if !recipe.callable_by.hook {
                return Err(HookRefusal::NotCallable(name.to_owned()));
            }
            Ok(self.child_run(&recipe, &string_map(params.get("args")))?)
        });
        let run = match run {
            Ok(run) => run,
            Err(why) => return self.serve_now(&hook, "recipe.run", Err(why), answer),
        };
        self.serve_noted(&hook, &format!("recipe.run {name}"), None);
        let text = async move {
            let child = run.await?;
            let text = &child.text;
            let messages =
                if text.is_empty() { json!([]) } else { json!([{ "role": "user", "content": text }]) };
            // Histories that its hooks hand over apply to no conversation here.
            let aside = child.handed.len();
            Ok(json!({
                "text": text, "recipe_output": text, "messages": messages, "continue": false,
                "histories_left_aside": aside,
            }))
        };
        self.core.start(served(answer, text), |()| BackgroundResult::Done);
    }

    /// `model.judge` is for hooks whose consent shows the user that they ask a model, at each of their events.
    fn service_model(
        &mut self,
        hook: String,
        method: &str,
        params: &Map<String, Value>,
        answer: ServiceReply,
    ) {
        let counted = match method {
            "model.judge" => self.hooks.count_judgement(),
            _ => self.count_paid_call(),
        };
        if let Err(why) = counted {
            return self.serve_now(&hook, method, Err(why), answer);
        }
        self.serve_noted(&hook, method, None);
        let utterances = utterances_in(params.get("messages"));
        let wanted =
            params.get("max_tokens").and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok());
        let max_tokens = wanted.unwrap_or(COMPLETION_TOKENS_MAX).min(COMPLETION_TOKENS_MAX);
        let model = CompletionModel::of(
            &self.core,
            self.subagents.sender(),
            params.get("model").and_then(Value::as_str) == Some("small"),
        );
        let work = async move {
            let Completion { text, model, usage } = model.complete(&utterances?, max_tokens, hook).await?;
            Ok(
                json!({ "text": text, "model": model.0, "usage": { "input_tokens": usage.input, "output_tokens": usage.output } }),
            )
        };
        self.core.start(served(answer, work), |()| BackgroundResult::Done);
    }
}

/// Answers with the result of the work, which is cancelled if the hook gives up.
async fn served(mut answer: ServiceReply, work: impl Future<Output = Result<Value, HookRefusal>>) {
    tokio::select! {
        result = work => {
            let _ = answer.send(result.map_err(Into::into));
        }
        () = answer.closed() => {}
    }
}

/// The number in `e7` or `e7.1`, or a plain number.
fn entry_number(value: &Value) -> Option<u64> {
    match value {
        Value::String(id) => id.strip_prefix('e')?.split('.').next()?.parse().ok(),
        other => other.as_u64(),
    }
}

fn string_map(value: Option<&Value>) -> std::collections::BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let map = value.and_then(Value::as_object).into_iter().flatten();
    map.map(|(key, value)| (key.clone(), text(value))).collect()
}

fn not_a_choice(what: &'static str, choices: &'static str, value: &str) -> HookRefusal {
    HookRefusal::NotAChoice { what, choices, value: value.to_owned() }
}

/// The messages of `model.complete`: strings, or objects with `role` and `content`.
fn utterances_in(value: Option<&Value>) -> Result<Vec<Utterance>, HookRefusal> {
    let list = value.and_then(Value::as_array);
    let list = list.ok_or(HookRefusal::Missing { of: "model.complete", what: "\"messages\", a list" })?;
    let one = |value: &Value| {
        if let Some(text) = value.as_str() {
            return Ok(Utterance { role: Role::User, text: text.to_owned() });
        }
        let text = value["content"].as_str();
        let text = text.ok_or(HookRefusal::Missing { of: "a message", what: "\"content\", a text" })?;
        let role = value["role"].as_str().unwrap_or("user");
        let wrong = || not_a_choice("a role", "user, assistant or system", role);
        Ok(Utterance { role: Role::parse(role).ok_or_else(wrong)?, text: text.to_owned() })
    };
    list.iter().map(one).collect()
}

/// The parts of its session that a completion needs, so that both can run at the same time.
struct CompletionModel {
    services: SessionServices,
    settings: Arc<Settings>,
    environment: Arc<Vec<(OsString, OsString)>>,
    /// The small model, if it is to be used.
    small: Option<ModelName>,
    /// The session's model, once it is known.
    main: Option<Endpoint>,
    news: NewsSender,
}

struct Completion {
    text: String,
    model: ModelName,
    usage: Usage,
}

impl CompletionModel {
    fn of(core: &Core, news: NewsSender, small: bool) -> CompletionModel {
        let small = small.then(|| models::small(&core.settings, core.model.endpoint())).flatten();
        CompletionModel {
            services: core.services.clone(),
            settings: core.settings.shared(),
            environment: core.workspace.environment.clone(),
            small,
            main: core.model.endpoint().cloned(),
            news,
        }
    }

    /// Has the model answer these messages. `by` names who pays for it in the log.
    async fn complete(
        self,
        messages: &[Utterance],
        max_tokens: u32,
        by: String,
    ) -> Result<Completion, HookRefusal> {
        let CompletionModel { services, settings, environment, small, main, news } = self;
        let endpoint = match (small, main) {
            (None, Some(endpoint)) => endpoint,
            (name, _) => find_endpoint(&services, name.as_ref(), &settings, &environment).await?,
        };
        let (text, usage) = complete(&services.http, &endpoint, messages, max_tokens).await?;
        let model = endpoint.name;
        // A session that has ended records no cost.
        news.send(ChildNews::Spent { model: model.clone(), usage, by });
        Ok(Completion { text, model, usage })
    }
}
