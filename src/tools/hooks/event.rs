//! The events at which hooks run, with all their names.

use std::fmt;

/// An event at which hooks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HookEvent {
    SessionStart,
    UserMessageSend,
    BeforeToolCall,
    AfterToolCall,
    /// The user is asked about a tool call.
    PermissionRequest,
    /// Something waits for the user.
    Notification,
    /// The model delegates work to a subagent.
    SubagentStart,
    /// The model has marked an item of its plan as done.
    TaskCompleted,
    /// The end of a round: the model's reply and the results of its tool calls are complete.
    TurnEnd,
    /// The agent is about to stop work on this prompt.
    AgentStop,
    PreCompact,
    PostCompact,
    SessionEnd,
    /// A turn ends with an error of the model's provider.
    TurnFailed,
}

impl HookEvent {
    pub const ALL: [HookEvent; 14] = [
        HookEvent::SessionStart,
        HookEvent::UserMessageSend,
        HookEvent::BeforeToolCall,
        HookEvent::AfterToolCall,
        HookEvent::PermissionRequest,
        HookEvent::Notification,
        HookEvent::SubagentStart,
        HookEvent::TaskCompleted,
        HookEvent::TurnEnd,
        HookEvent::AgentStop,
        HookEvent::PreCompact,
        HookEvent::PostCompact,
        HookEvent::SessionEnd,
        HookEvent::TurnFailed,
    ];

    /// The canonical name, used in payloads, logs and documentation.
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    /// All names: the canonical one, then kodelet's newer ones and Claude Code's.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            HookEvent::SessionStart => &["session_start", "session.start", "SessionStart"],
            HookEvent::UserMessageSend => &["user_message_send", "user.message", "UserPromptSubmit"],
            HookEvent::BeforeToolCall => &["before_tool_call", "tool.call", "PreToolUse"],
            HookEvent::AfterToolCall => &["after_tool_call", "tool.result", "PostToolUse"],
            HookEvent::PermissionRequest => &["permission_request", "PermissionRequest"],
            HookEvent::Notification => &["notification", "Notification"],
            HookEvent::SubagentStart => &["subagent_start", "SubagentStart"],
            HookEvent::TaskCompleted => &["task_completed", "TaskCompleted"],
            HookEvent::TurnEnd => &["turn_end", "after_turn", "turn.end"],
            HookEvent::AgentStop => &["agent_stop", "agent.end", "Stop", "SubagentStop"],
            HookEvent::PreCompact => &["pre_compact", "PreCompact"],
            HookEvent::PostCompact => &["post_compact", "PostCompact"],
            HookEvent::SessionEnd => &["session_end", "session.end", "SessionEnd"],
            HookEvent::TurnFailed => &["turn_failed", "StopFailure"],
        }
    }

    /// Parses any of the names.
    pub fn parse(name: &str) -> Option<HookEvent> {
        HookEvent::ALL.into_iter().find(|event| event.names().contains(&name))
    }

    /// Whether a hook may block the action that the event announces.
    pub fn blocks(self) -> bool {
        matches!(self, HookEvent::UserMessageSend | HookEvent::BeforeToolCall | HookEvent::PreCompact)
    }
}

impl fmt::Display for HookEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
