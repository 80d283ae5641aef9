//! A list to choose from: sessions, or the values of an option. Pure.

use agent_client_protocol::v2::schema as wire;
use epitome_thread::visible::visible_line;

use crate::client::ChatRequest;

/// See the module's documentation.
pub struct Picker {
    pub title: String,
    pub entries: Vec<PickerEntry>,
    pub selected: usize,
    /// The cursor of the next page, if the list is not complete.
    pub cursor: Option<wire::SessionListCursor>,
    /// Whether the next part has been requested.
    pub is_loading: bool,
}

pub struct PickerEntry {
    pub label: String,
    pub detail: String,
    pub request: ChatRequest,
}

impl Picker {
    /// The sessions of a directory, newest first as the agent lists them.
    pub fn of_sessions(sessions: Vec<wire::SessionInfo>, cursor: Option<wire::SessionListCursor>) -> Picker {
        let entry = |info: wire::SessionInfo| PickerEntry {
            label: info
                .title
                .as_deref()
                .map_or("(no title)".into(), |title| visible_line(title))
                .into_owned(),
            detail: info
                .updated_at
                .map(|at| at.replace('T', " ").chars().take(16).collect())
                .unwrap_or_default(),
            request: ChatRequest::Resume { session: info.session_id, cwd: info.cwd.0 },
        };
        Picker {
            title: "Sessions of this directory".to_owned(),
            entries: sessions.into_iter().map(entry).collect(),
            selected: 0,
            cursor,
            is_loading: false,
        }
    }

    /// Adds the next part of a list.
    pub fn extend(&mut self, next: Picker) {
        self.entries.extend(next.entries);
        self.cursor = next.cursor;
        self.is_loading = false;
    }

    /// The values of an option.
    pub fn of_option(session: &wire::SessionId, option: &wire::SessionConfigOption) -> Picker {
        let values = values(option);
        let current = current(option);
        let selected = values.iter().position(|value| Some(&value.value) == current).unwrap_or(0);
        let entry = |value: &wire::SessionConfigSelectOption| PickerEntry {
            label: visible_line(&value.name).into_owned(),
            detail: value.description.as_deref().map(visible_line).unwrap_or_default().into_owned(),
            request: set(session, option, value),
        };
        Picker {
            title: option.name.clone(),
            entries: values.iter().map(entry).collect(),
            selected,
            cursor: None,
            is_loading: false,
        }
    }

    /// Selects another entry. At the end of a part of a list, returns where it continues instead.
    pub fn select(&mut self, forward: bool) -> Option<wire::SessionListCursor> {
        if forward && self.selected + 1 >= self.entries.len() && self.cursor.is_some() {
            let is_first = !std::mem::replace(&mut self.is_loading, true);
            return self.cursor.clone().filter(|_| is_first);
        }
        let count = self.entries.len().max(1);
        self.selected = if forward { self.selected + 1 } else { self.selected + count - 1 } % count;
        None
    }
}

/// The request that sets the next value of an option.
pub fn next_value(session: &wire::SessionId, option: &wire::SessionConfigOption) -> Option<ChatRequest> {
    let values = values(option);
    let at = values.iter().position(|value| Some(&value.value) == current(option))?;
    values.get((at + 1) % values.len()).map(|value| set(session, option, value))
}

/// The name of an option's value.
pub fn shown_value(option: &wire::SessionConfigOption) -> Option<String> {
    let value = current(option)?;
    let values = values(option);
    let named = values.iter().find(|known| known.value == *value).map(|known| known.name.clone());
    Some(named.unwrap_or_else(|| value.to_string()))
}

fn set(
    session: &wire::SessionId,
    option: &wire::SessionConfigOption,
    value: &wire::SessionConfigSelectOption,
) -> ChatRequest {
    ChatRequest::SetOption {
        session: session.clone(),
        option: option.config_id.clone(),
        value: wire::SessionConfigOptionValue::Id { value: value.value.clone() },
    }
}

fn current(option: &wire::SessionConfigOption) -> Option<&wire::SessionConfigValueId> {
    match &option.kind {
        wire::SessionConfigKind::Select(select) => Some(&select.current_value),
        _ => None,
    }
}

fn values(option: &wire::SessionConfigOption) -> Vec<wire::SessionConfigSelectOption> {
    let wire::SessionConfigKind::Select(select) = &option.kind else { return Vec::new() };
    match &select.options {
        wire::SessionConfigSelectOptions::Ungrouped(options) => options.clone(),
        wire::SessionConfigSelectOptions::Grouped(groups) => {
            groups.iter().flat_map(|group| group.options.clone()).collect()
        }
        _ => Vec::new(),
    }
}
