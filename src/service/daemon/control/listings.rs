//! Methods that list what is available in a directory and an environment: recipes, hooks, models.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::fault::{Fault, FaultKind};
use super::params::{EnvironmentObject, SessionParams, directory, spawn_blocking};
use super::{MethodResult, MethodTable};
use crate::Daemon;
use epitome_config::Settings;
use epitome_hooks::discover::{HookSearch, discover};
use epitome_hooks::shown as hooks_shown;
use epitome_hooks::trust::TrustStore;
use epitome_provider::catalog::{CatalogScope, ModelCatalog as Models};
use epitome_provider::endpoint;
use epitome_provider::learned::RefreshTime;
use epitome_provider::models::provider_of;
use epitome_recipe::catalog::RecipeCatalog;
use epitome_recipe::shown as recipes_shown;
use epitome_session::sandbox_rules;
use epitome_thread::problem::{self, Problem};
use epitome_tools::Workspace;

/// Most models returned by one call; several routers together offer more.
const MODELS_MAX: usize = 2_000;

pub(super) fn register(table: &mut MethodTable) {
    table.blocking("recipes.list", recipes);
    table.blocking("recipes.show", recipe);
    table.blocking("hooks.list", hooks);
    table.blocking("hooks.trail", trail);
    table.waiting("models.list", |daemon, params, _| models(daemon, params));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FolderParams {
    cwd: PathBuf,
    /// Additional directories with recipes.
    #[serde(default)]
    recipe_dirs: Vec<PathBuf>,
}

impl FolderParams {
    fn catalog(self, daemon: &Daemon) -> Result<RecipeCatalog, Fault> {
        Ok(RecipeCatalog::load(&directory(self.cwd)?, &daemon.paths, &self.recipe_dirs))
    }
}

fn recipes(daemon: &Arc<Daemon>, place: FolderParams) -> MethodResult {
    let mut catalog = place.catalog(daemon)?;
    catalog.recipes.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(recipes_shown::list(&catalog))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeParams {
    cwd: PathBuf,
    name: String,
    #[serde(default)]
    recipe_dirs: Vec<PathBuf>,
}

fn recipe(daemon: &Arc<Daemon>, wanted: RecipeParams) -> MethodResult {
    let catalog = FolderParams { cwd: wanted.cwd, recipe_dirs: wanted.recipe_dirs }.catalog(daemon)?;
    let name = wanted.name.trim_start_matches('/');
    let recipe = catalog.find(name).ok_or_else(|| {
        let fault = Fault::new(FaultKind::NotFound, format!("there is no recipe {name:?}"));
        match problem::nearest(name, catalog.recipes.iter().map(|recipe| recipe.id.as_str())) {
            Some(near) => fault.hint(format!("did you mean {near:?}?")),
            None => fault.hint("recipes.list shows all"),
        }
    })?;
    let text =
        RecipeCatalog::source_text(recipe).map_err(|why| Fault::new(FaultKind::Store, why.to_string()))?;
    let mut fields = recipes_shown::fields(recipe);
    fields.insert("text".to_owned(), json!(text));
    Ok(Value::Object(fields))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvironmentParams {
    cwd: PathBuf,
    environment: Option<EnvironmentObject>,
}

fn hooks(daemon: &Arc<Daemon>, wanted: EnvironmentParams) -> MethodResult {
    let cwd = directory(wanted.cwd)?;
    let environment = wanted.environment.unwrap_or_else(EnvironmentObject::current).shared();
    let get =
        |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let (settings, mut problems) = Settings::load(&daemon.paths, Some(&cwd), get);
    let (trust, problem) = TrustStore::load(&daemon.paths, settings.hooks.trust);
    problems.extend(problem);
    let workspace = Workspace::new(cwd, Vec::new(), environment);
    let workspace = workspace.exposing(Arc::new(endpoint::exposure(&settings)));
    let mut found = discover(&HookSearch {
        paths: &daemon.paths,
        workspace: &workspace,
        settings: &settings.hooks,
        reaper: &daemon.sessions.services().reaper,
        sandbox: &Arc::new(sandbox_rules(&settings, &daemon.paths)),
        trust: &trust,
    });
    found.problems.splice(0..0, problems);
    let mut listed = hooks_shown::found(&found);
    listed["enabled"] = json!(settings.hooks.enabled);
    Ok(listed)
}

fn trail(daemon: &Arc<Daemon>, wanted: SessionParams) -> MethodResult {
    let session = wanted.session.find(daemon)?;
    let (entries, damage) = daemon.store.read_with_damage(&session)?;
    Ok(json!({
        "session": session, "trail": hooks_shown::trail(&entries),
        "damage": damage.map(|damage| damage.to_string()),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelsParams {
    provider: Option<String>,
    /// Include models of providers without a key.
    #[serde(default)]
    all: bool,
    /// Query the providers for their lists first.
    #[serde(default)]
    refresh: bool,
    /// Directory whose settings apply in addition to the user's own.
    cwd: Option<PathBuf>,
    environment: Option<EnvironmentObject>,
}

async fn models(daemon: Arc<Daemon>, wanted: ModelsParams) -> MethodResult {
    let cwd = wanted.cwd.map(directory).transpose()?;
    let environment = wanted.environment.unwrap_or_else(EnvironmentObject::current).shared();
    let (paths, known) = (daemon.paths.clone(), environment.clone());
    let (settings, problems) = spawn_blocking(&daemon, move || {
        let get = |name: &str| known.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        Ok(Settings::load(&paths, cwd.as_deref(), get))
    })
    .await?;
    let services = daemon.sessions.services();
    services.learned.load().await;
    let mut unanswered = Vec::from_iter(services.learned.fault());
    let urls = endpoint::local_urls(&settings, &environment);
    let local = endpoint::find_local(&services.http, &urls).await;
    let catalog = Models {
        settings: &settings,
        environment: &environment,
        learned: &services.learned,
        local: local.as_ref(),
    };
    // A local server is always asked, as its loaded models change.
    for place in catalog.endpoints().into_iter().filter(|place| wanted.refresh || place.provider() == "local")
    {
        if let Err(error) = services.learned.refresh(&services.http, &place, RefreshTime::Now).await {
            unanswered.push(error.to_string());
        }
    }
    services.learned.save().await;
    let scope = if wanted.all { CatalogScope::All } else { CatalogScope::Usable };
    let marks = catalog.marks();
    let provider = wanted.provider.as_deref();
    let offers = catalog.offers(scope, MODELS_MAX);
    let offers = offers.iter().filter(|offer| provider.is_none_or(|name| provider_of(&offer.name) == name));
    let models: Vec<Value> = offers.map(|offer| offer.to_json(&marks)).collect();
    let problems: Vec<Value> = problems.iter().map(Problem::to_json).collect();
    Ok(json!({ "models": models, "problems": problems, "unanswered": unanswered }))
}
