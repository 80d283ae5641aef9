//! Tools that the model only gets if the user's settings ask for them: the web search and the memory.

use std::sync::Arc;

use super::core::Core;
use epitome_files::memory::MemoryFiles;
use epitome_provider::search::SearchService;
use epitome_thread::problem::Problem;
use epitome_tools::Tool;
use epitome_tools::memory::MemoryTool;
use epitome_tools::permission::ruled::DeniedHosts;
use epitome_tools::web_search::WebSearch;

/// Adds the tools that the settings ask for.
pub(super) fn offer(core: &mut Core) {
    let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
    let choice = core.settings.web_search;
    let service = SearchService::find(choice, &core.workspace.environment).unwrap_or_else(|why| {
        let message = format!("web_search = {:?} has no effect: {why}", choice.id());
        let path = core.services.paths.config_file();
        core.clients.notify_problems(&[Problem::new(path, message)]);
        None
    });
    if service.is_some() || choice.uses_provider() {
        let denied = DeniedHosts::from(&core.settings.permissions);
        tools.push(Arc::new(WebSearch { service, denied }));
    }
    if core.settings.memory {
        let files = MemoryFiles::of(&core.workspace.cwd, &core.services.paths);
        tools.push(Arc::new(MemoryTool { files }));
    }
    core.services.toolbox = core.services.toolbox.with(tools);
}
