//! Applies the permission rules of configuration files in addition to modes and stored rules. Accesses the disk only
//! to resolve the links in rules.
//!
//! Deny takes precedence over ask, and ask over allow, regardless of the files that the rules are in. A call that a
//! mode denies stays denied. An allow rule must certainly cover the entire call; for ask and deny rules it is
//! sufficient that a part of the call may match.

use crate::git_commands::changes_repository;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use epitome_config::rules::{GLOB_PREFIX, PermissionDecision, RulePattern, WrittenRule, literal_brackets};
use epitome_thread::problem::Problem;
use epitome_thread::{Decider, Mode, RecordedDecision, Rule};

use super::{AllowedBy, DiskFacts, PermissionVerdict, decide, is_secret, runs_later};
use crate::command_line::parts::{CommandParts, FileNameWord};
use crate::command_line::{self, matches_pattern};
use crate::secret_paths::is_secret_name;
use crate::{Access, PATH_BYTES_MAX, Workspace, normal, real_path};

/// Sample names of files that usually contain secrets, matched against shell patterns in commands.
const SECRET_NAMES: [&str; 18] = [
    ".env",
    ".env.local",
    ".env.production",
    ".netrc",
    ".pgpass",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".htpasswd",
    "credentials",
    "credentials.json",
    "secrets.json",
    "secrets.yaml",
    "secrets.toml",
    "server.pem",
    "server.key",
    "id_rsa",
    "id_ed25519",
];

/// A call, and everything needed to decide about it.
#[derive(Clone, Copy)]
pub struct PermissionQuery<'a> {
    /// The tool's name.
    pub tool: &'a str,
    /// See `Tool::rule_names`.
    pub names: &'a [(&'static str, String)],
    pub access: &'a Access,
    pub mode: Mode,
    /// Whether the complete sandbox applies to commands that don't request to run outside; relevant only in `Auto`
    /// mode.
    pub is_sandboxed: bool,
    /// Rules for which the user chose "always" in this session.
    pub remembered: &'a [Rule],
    /// Rules that the user saved for this workspace.
    pub kept: &'a [Rule],
    /// Rules of the configuration, in the order of its files.
    pub rules: &'a [WrittenRule],
    pub workspace: &'a Workspace,
    pub facts: &'a DiskFacts,
}

/// The result of the decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    pub verdict: PermissionVerdict,
    pub decided: Option<RecordedDecision>,
    /// The rule that requires asking the user, as text for the permission prompt.
    pub because: Option<String>,
}

/// Decides about a call.
pub fn judge(asked: &PermissionQuery<'_>) -> Judged {
    let parts = match asked.access {
        Access::Command { line, .. } if !asked.rules.is_empty() || asked.mode == Mode::Auto => {
            Some(CommandParts::parse(line))
        }
        _ => None,
    };
    let call = ParsedCall { asked, parts };
    let judged = |verdict, decided| Judged { verdict, decided, because: None };
    if let Some(rule) = call.first(PermissionDecision::Deny) {
        let why = format!(
            "The rule {rule} in {}:{} forbids this in every mode. Don't look for another way to do the \
             same. Continue without it, or tell the user about the rule.",
            rule.path.display(),
            rule.line
        );
        return judged(PermissionVerdict::Deny { why }, Some(by_rule(rule, false)));
    }
    let rules: Vec<Rule> = asked.remembered.iter().chain(asked.kept).cloned().collect();
    let base = decide(asked.access, call.mode(), &rules, asked.workspace, asked.facts);
    match base {
        PermissionVerdict::Deny { why } => {
            let decided = RecordedDecision { allowed: false, by: Decider::Mode { mode: asked.mode } };
            judged(PermissionVerdict::Deny { why }, Some(decided))
        }
        PermissionVerdict::Allow { .. } | PermissionVerdict::Ask { .. }
            if let Some(rule) = call.first(PermissionDecision::Ask) =>
        {
            let written = || format!("The rule {rule} in {}:{} asks.", rule.path.display(), rule.line);
            asks(rule.mistake.clone().unwrap_or_else(written))
        }
        // These modes don't ask, so a line that may hide something denied would run unseen.
        PermissionVerdict::Allow { by: AllowedBy::Mode(Mode::Full | Mode::Auto) }
            if let Some(rule) = call.may_be_hidden() =>
        {
            asks(format!(
                "This line can't be fully understood, and the rule {rule} in {}:{} may match it.",
                rule.path.display(),
                rule.line
            ))
        }
        PermissionVerdict::Ask { always } => match call.allowing() {
            Some(rule) => {
                let by = AllowedBy::Mode(asked.mode);
                judged(PermissionVerdict::Allow { by }, Some(by_rule(rule, true)))
            }
            None => judged(PermissionVerdict::Ask { always }, None),
        },
        PermissionVerdict::Allow { by } => {
            let decider = match &by {
                AllowedBy::Harmless => None,
                AllowedBy::Mode(mode) => Some(Decider::Mode { mode: *mode }),
                AllowedBy::Rule(rule) if asked.remembered.contains(rule) => {
                    Some(Decider::Remembered { rule: rule.clone() })
                }
                AllowedBy::Rule(rule) => Some(Decider::Kept { rule: rule.clone() }),
            };
            let decided = decider.map(|by| RecordedDecision { allowed: true, by });
            judged(PermissionVerdict::Allow { by }, decided)
        }
    }
}

fn asks(because: String) -> Judged {
    Judged { verdict: PermissionVerdict::Ask { always: None }, decided: None, because: Some(because) }
}

fn by_rule(rule: &WrittenRule, allowed: bool) -> RecordedDecision {
    let by = Decider::Config { rule: rule.to_string(), path: rule.path.clone(), line: rule.line };
    RecordedDecision { allowed, by }
}

struct ParsedCall<'a> {
    asked: &'a PermissionQuery<'a>,
    /// The parts of a command, if rules or the mode need them.
    parts: Option<CommandParts>,
}

impl<'a> ParsedCall<'a> {
    /// Returns the effective mode: `Auto` relies on the sandbox, so a command that is not sandboxed, or that names a
    /// file with secrets, is decided as in `AcceptEdits`.
    fn mode(&self) -> Mode {
        let is_asked = |parts: &CommandParts| !self.asked.is_sandboxed || names_secret_plainly(parts);
        match (self.asked.mode, &self.parts) {
            (Mode::Auto, Some(parts)) if is_asked(parts) => Mode::AcceptEdits,
            (mode, _) => mode,
        }
    }

    fn rules_with(&self, word: PermissionDecision) -> impl Iterator<Item = &'a WrittenRule> {
        self.asked.rules.iter().filter(move |rule| rule.word == word)
    }

    /// The first rule of this kind that any part of the call may match.
    fn first(&self, word: PermissionDecision) -> Option<&'a WrittenRule> {
        self.rules_with(word).find(|rule| self.touches(&rule.pattern))
    }

    /// An ask or deny rule that may apply to parts of the line that can't be determined.
    fn may_be_hidden(&self) -> Option<&'a WrittenRule> {
        let parts = self.parts.as_ref()?;
        let holds_back = self.asked.rules.iter().filter(|rule| rule.word != PermissionDecision::Allow);
        holds_back.into_iter().find(|rule| match &rule.pattern.about {
            Some(about) if is_of_files(&rule.pattern.tool) => {
                let globs = Globs::new(about, self.asked.workspace, CaseSensitivity::Ignored);
                let open = parts.names().filter(|name| name.path().is_none());
                open.map(|name| self.asked.workspace.resolve(&name.glob))
                    .any(|path| globs.may_be_reached(&path))
            }
            about if self.is_of_tool(&rule.pattern) => {
                !parts.is_clear || about.as_ref().is_some_and(|about| parts.may_hide(about))
            }
            Some(_) | None => false,
        })
    }

    /// Whether the pattern names the tool, or the kind of access.
    fn is_of_tool(&self, pattern: &RulePattern) -> bool {
        let PermissionQuery { tool, access, .. } = self.asked;
        let does = match access {
            Access::Nothing => &[][..],
            Access::Read(_) => &["Read"],
            Access::Write(_) => &["Edit", "Write"],
            Access::Command { .. } => &["Bash", "bash"],
            Access::Fetch { .. } if *tool == "web_search" => &["WebSearch"],
            Access::Fetch { .. } => &["WebFetch", "web_fetch"],
            Access::Remember(_) | Access::External { .. } => &[],
        };
        let mapped = |name: &str| name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
        let is_external = matches!(access, Access::External { server, tool, .. }
        if matches_pattern(&pattern.tool, &format!("mcp__{server}__{}", mapped(tool))));
        does.contains(&pattern.tool.as_str()) || matches_pattern(&pattern.tool, tool) || is_external
    }

    /// Whether a part of the call may match the pattern of an ask or deny rule.
    fn touches(&self, pattern: &RulePattern) -> bool {
        let workspace = self.asked.workspace;
        let is_named = |(tool, name): &(&str, String)| {
            matches_pattern(&pattern.tool, tool)
                && pattern.about.as_ref().is_none_or(|about| matches_pattern(about, name))
        };
        if self.asked.names.iter().any(is_named) {
            return true;
        }
        let globs = |about: &str| Globs::new(about, workspace, CaseSensitivity::Ignored);
        match (self.asked.access, &pattern.about) {
            (Access::Command { .. }, Some(about)) => {
                let parts = self.parts.as_ref();
                if self.is_of_tool(pattern) {
                    let meant = |command: &String| {
                        matches_pattern(about, command)
                            || (!about.contains('*') && command.starts_with(&format!("{about} ")))
                    };
                    return parts.is_some_and(|parts| parts.commands.iter().any(meant));
                }
                // Files that tools may not read or change may not be named by commands either.
                if !is_of_files(&pattern.tool) {
                    return false;
                }
                let globs = globs(about);
                let is_named =
                    |name: FileNameWord| name.path().is_some_and(|path| globs.fit(&workspace.real(path)));
                parts.is_some_and(|parts| parts.names().any(is_named))
            }
            // The error of an edit that doesn't match quotes the file, so an edit is also a read.
            (Access::Read(paths) | Access::Write(paths), Some(about))
                if self.is_of_tool(pattern) || pattern.tool == "Read" =>
            {
                let globs = globs(about);
                paths.iter().any(|path| globs.fit(path))
            }
            // A rule without a port is about all ports of the host.
            (Access::Fetch { host, .. }, Some(about)) if self.is_of_tool(pattern) => is_host_of(about, host),
            (_, Some(_)) => false,
            (_, None) => self.is_of_tool(pattern),
        }
    }

    /// Returns a rule that allows the call. If several rules cover the parts of a command line, the first of them.
    fn allowing(&self) -> Option<&'a WrittenRule> {
        // A rule that allows a skill is not about its commands.
        let is_of_tool = |pattern: &RulePattern| match self.asked.access {
            Access::Command { .. } => pattern.tool == "Bash" || matches_pattern(&pattern.tool, "bash"),
            _ => self.is_of_tool(pattern),
        };
        let mut of_tool = self.rules_with(PermissionDecision::Allow).filter(|rule| is_of_tool(&rule.pattern));
        match self.asked.access {
            Access::Nothing => None,
            // Running outside of the sandbox needs more than a rule for the command.
            Access::Command { confined: false, .. } => None,
            // So does a change of repositories by the programs of the line, or by hooks: these run files of the workspace.
            Access::Command { line, changes_git: true, .. }
                if !changes_repository(line) || !self.asked.facts.runs_only_git =>
            {
                None
            }
            Access::Command { line, confined: true, .. } => {
                self.allowing_line(line, &of_tool.collect::<Vec<_>>())
            }
            Access::Read(paths) | Access::Write(paths) => {
                let writes = matches!(self.asked.access, Access::Write(_));
                let rules: Vec<&WrittenRule> = of_tool.collect();
                let covers = |path: &PathBuf| {
                    rules.iter().copied().find(|rule| self.covers(&rule.pattern, path, writes))
                };
                let first = paths.first().and_then(covers)?;
                paths.iter().all(|path| covers(path).is_some()).then_some(first)
            }
            Access::Fetch { host, .. } => of_tool
                .find(|rule| rule.pattern.about.as_ref().is_none_or(|about| matches_pattern(about, host))),
            Access::Remember(_) | Access::External { .. } => {
                of_tool.find(|rule| rule.pattern.about.is_none())
            }
        }
    }

    fn allowing_line(&self, line: &str, rules: &[&'a WrittenRule]) -> Option<&'a WrittenRule> {
        let parts = self.parts.as_ref()?;
        let patterns = |wanted: fn(&str) -> bool| -> Vec<String> {
            let abouts = rules.iter().filter_map(|rule| rule.pattern.about.clone());
            abouts.filter(|about| wanted(about)).collect()
        };
        let exact = patterns(|about| !about.contains('*'));
        // A user who allows `cat *` isn't thinking of keys; one who allows `cat .env` is.
        if names_secret(parts) && command_line::refused(line, &exact).is_some() {
            return None;
        }
        if self.may_be_hidden().is_some() {
            return None;
        }
        if let Some(all) = rules.iter().find(|rule| rule.pattern.about.is_none()) {
            return Some(all);
        }
        if command_line::refused(line, &patterns(|_| true)).is_some() {
            return None;
        }
        let meant = |about: &str| parts.commands.iter().any(|command| matches_pattern(about, command));
        let first = rules.iter().find(|rule| rule.pattern.about.as_deref().is_some_and(meant));
        first.or(rules.first()).copied()
    }

    /// Whether a rule allows reading or writing a path. Sensitive paths must be named by the rule itself.
    fn covers(&self, pattern: &RulePattern, path: &Path, writes: bool) -> bool {
        let PermissionQuery { workspace, facts, .. } = self.asked;
        let needs_caution =
            |path: &Path| is_secret(path, facts) || (writes && runs_later(path, workspace, facts));
        let Some(about) = &pattern.about else {
            return workspace.roots().containing(path).is_some() && !needs_caution(path);
        };
        let globs = Globs::new(about, workspace, CaseSensitivity::Exact);
        globs.fit(path) && (!needs_caution(path) || globs.named.iter().any(|named| needs_caution(named)))
    }
}

/// Whether the pattern of an ask or deny rule matches a host, or its name without the port.
fn is_host_of(about: &str, host: &str) -> bool {
    let about = about.to_ascii_lowercase();
    let name = host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    [Some(host), name.map(|(name, _)| name)].into_iter().flatten().any(|name| matches_pattern(&about, name))
}

/// The hosts whose pages rules deny, for fetching or for searching.
#[derive(Clone, Debug, Default)]
pub struct DeniedHosts(Vec<String>);

impl DeniedHosts {
    pub fn from(rules: &[WrittenRule]) -> DeniedHosts {
        let tools = ["web_fetch", "web_search", "WebFetch", "WebSearch"];
        let is_of_pages = |rule: &&WrittenRule| {
            rule.word == PermissionDecision::Deny && tools.iter().any(|tool| rule.pattern.may_be_of(tool))
        };
        let abouts = rules.iter().filter(is_of_pages).filter_map(|rule| rule.pattern.about.clone());
        DeniedHosts(abouts.collect())
    }

    pub fn has(&self, host: &str) -> bool {
        self.0.iter().any(|about| is_host_of(about, host))
    }
}

/// Reports ask and deny rules that name a path below which nothing exists: a rule that looks right may protect nothing. Rules of
/// the user's own file are for many workspaces, so their relative paths are left out. Reads the disk.
pub fn unmatched(rules: &[WrittenRule], workspace: &Workspace) -> Vec<Problem> {
    let is_here = |rule: &WrittenRule, about: &str| {
        let path = about.strip_prefix(GLOB_PREFIX).unwrap_or(about);
        let is_of_workspace = workspace.roots().containing(&real_path(&rule.path)).is_some();
        path.starts_with("//") || path.starts_with("~/") || path.contains('/') && is_of_workspace
    };
    let held =
        rules.iter().filter(|rule| rule.word != PermissionDecision::Allow && is_of_files(&rule.pattern.tool));
    let named = held.filter_map(|rule| Some((rule, rule.pattern.about.as_ref()?)));
    let missing = named.filter(|(rule, about)| {
        let globs = Globs::new(about, workspace, CaseSensitivity::Exact);
        is_here(rule, about) && globs.named.iter().all(|path| path.symlink_metadata().is_err())
    });
    let hint = "it applies to what is created there; brackets and parentheses are literal unless it begins with `glob:`";
    missing
        .map(|(rule, _)| Problem {
            is_notice: true,
            ..Problem::new(&rule.path, format!("the rule {rule} matches nothing that exists"))
                .at((rule.line, 1))
                .with_hint(hint)
        })
        .collect()
}

/// Whether a rule for this tool name is about files.
fn is_of_files(tool: &str) -> bool {
    matches!(tool, "Read" | "Edit" | "Write")
        || ["file_read", "file_write", "file_edit", "apply_patch"]
            .iter()
            .any(|name| matches_pattern(tool, name))
}

/// Whether a word of a command is a file that usually contains secrets. Variables and quoted code are not examined:
/// nothing can leave the sandbox, and secrets in the output are masked.
fn names_secret_plainly(parts: &CommandParts) -> bool {
    // Other texts are code or sentences.
    let is_path = |glob: &str| glob.chars().all(|c| c.is_alphanumeric() || "._-~/*?@".contains(c));
    parts.arguments().filter(|name| !name.is_open && is_path(&name.glob)).any(|name| {
        // `*.json` may match a file with secrets, but rarely does; `.e*` targets hidden files.
        let is_hidden = name.glob.rsplit('/').next().is_some_and(|last| last.starts_with('.'));
        is_secret_name(Path::new(&name.glob))
            || is_hidden && SECRET_NAMES.iter().any(|secret| name.may_end_in(secret))
    })
}

/// Whether a command may name a file that usually contains secrets.
fn names_secret(parts: &CommandParts) -> bool {
    parts.names().any(|name| {
        name.path().is_some_and(|path| is_secret_name(Path::new(path)))
            || SECRET_NAMES.iter().any(|secret| name.may_end_in(secret))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CaseSensitivity {
    Exact,
    /// Some file systems ignore case, and a denied file must not be reachable by another spelling.
    Ignored,
}

/// A path pattern of a rule, for one workspace.
struct Globs {
    matchers: Vec<GlobMatcher>,
    /// The literal prefixes of the pattern, up to the first component with a wildcard.
    named: Vec<PathBuf>,
}

impl Globs {
    /// Compiles a pattern. `//a` is absolute and `~/a` is below the user's home directory; other patterns are
    /// relative to the workspace's directories, and match at any depth if they contain no slash. A pattern also
    /// matches everything below a matching directory.
    fn new(about: &str, workspace: &Workspace, case: CaseSensitivity) -> Globs {
        // Frameworks have directories such as `[id]`, which a rule means literally.
        let (about, has_classes) = match about.strip_prefix(GLOB_PREFIX) {
            Some(about) => (about, true),
            None => (about, false),
        };
        let about = about.strip_suffix('/').unwrap_or(about);
        let bases: Vec<(PathBuf, String)> = if let Some(rest) = about.strip_prefix("//") {
            vec![(PathBuf::from("/"), rest.to_owned())]
        } else if let Some(rest) = about.strip_prefix("~/") {
            workspace.home().map(|home| (home, rest.to_owned())).into_iter().collect()
        } else {
            let rest = about.strip_prefix("./").unwrap_or(about);
            let rest = if rest.contains('/') { rest.to_owned() } else { format!("**/{rest}") };
            let roots = std::iter::once(&workspace.cwd).chain(&workspace.directories);
            roots.map(|root| (real_path(root), rest.clone())).collect()
        };
        let mut globs = Globs { matchers: Vec::new(), named: Vec::new() };
        for (base, rest) in bases {
            let rest = rest.strip_suffix("/**").unwrap_or(&rest);
            let is_plain =
                |part: &&str| !(part.contains(['*', '?', '{', '\\']) || has_classes && part.contains('['));
            let plain: Vec<&str> = rest.split('/').take_while(is_plain).collect();
            let named = normal(&base.join(plain.join("/")));
            let pattern: Vec<&str> = rest.split('/').skip(plain.len()).collect();
            // Include the target if the rule's path is a link, because the links in calls' paths are resolved.
            let real = real_path(&named);
            let mut begins = vec![named];
            if !begins.contains(&real) {
                begins.push(real);
            }
            for begin in begins {
                let text = std::iter::once(globset::escape(&begin.to_string_lossy())).chain(
                    pattern.iter().map(|part| match has_classes {
                        true => (*part).to_owned(),
                        false => literal_brackets(part),
                    }),
                );
                let text = text.collect::<Vec<_>>().join("/").replace("//", "/");
                let glob = GlobBuilder::new(&text)
                    .literal_separator(true)
                    .case_insensitive(case == CaseSensitivity::Ignored)
                    .build();
                globs.matchers.extend(glob.map(|glob| glob.compile_matcher()).ok());
                globs.named.push(begin);
            }
            // `**/.env` names the file just as `.env` does.
            if let [first, name] = pattern[..]
                && first == "**"
                && is_plain(&name)
            {
                globs.named.push(base.join(name));
            }
        }
        globs
    }

    /// Whether a path with shell wildcards may expand to a path that matches, or to one of its parents.
    fn may_be_reached(&self, open: &Path) -> bool {
        let same = |part: &std::ffi::OsStr, open: &std::ffi::OsStr| {
            let (part, open) = (part.to_string_lossy(), open.to_string_lossy());
            let glob = GlobBuilder::new(&open).case_insensitive(true).build();
            part.eq_ignore_ascii_case(&open)
                || glob.map_or(true, |glob| glob.compile_matcher().is_match(&*part))
        };
        self.named.iter().any(|named| named.iter().zip(open).all(|(part, open)| same(part, open)))
    }

    fn fit(&self, path: &Path) -> bool {
        path.as_os_str().len() <= PATH_BYTES_MAX
            && path.ancestors().any(|part| self.matchers.iter().any(|matcher| matcher.is_match(part)))
    }
}

/// Files that searches skip because of an ask or deny rule for reading.
#[derive(Default)]
pub struct HiddenFiles(Vec<Globs>);

impl HiddenFiles {
    /// Returns the files that the rules hide from a reading tool.
    pub fn from(tool: &str, rules: &[WrittenRule], workspace: &Workspace) -> HiddenFiles {
        let of_reading = rules.iter().filter(|rule| {
            rule.word != PermissionDecision::Allow
                && (rule.pattern.tool == "Read"
                    || matches_pattern(&rule.pattern.tool, tool)
                    || matches_pattern(&rule.pattern.tool, "file_read"))
        });
        HiddenFiles::by_patterns(of_reading.filter_map(|rule| rule.pattern.about.as_ref()), workspace)
    }

    /// The path patterns of the rules that deny reading.
    pub fn denied(rules: &[WrittenRule]) -> Vec<String> {
        let of_reading = rules.iter().filter(|rule| {
            rule.word == PermissionDecision::Deny
                && (rule.pattern.tool == "Read" || matches_pattern(&rule.pattern.tool, "file_read"))
        });
        of_reading.filter_map(|rule| rule.pattern.about.clone()).collect()
    }

    /// Returns the files that match these patterns of deny rules.
    pub(crate) fn by_patterns<'a>(
        patterns: impl IntoIterator<Item = &'a String>,
        workspace: &Workspace,
    ) -> HiddenFiles {
        let globs = patterns.into_iter().map(|about| Globs::new(about, workspace, CaseSensitivity::Ignored));
        HiddenFiles(globs.collect())
    }

    /// The paths that the patterns name without a wildcard.
    pub(crate) fn named(&self) -> impl Iterator<Item = &PathBuf> {
        self.0.iter().flat_map(|globs| &globs.named).filter(|path| self.hides(path))
    }

    /// Whether a path is hidden by a pattern that matches it, and not only because it is below a hidden one.
    pub(crate) fn hides_itself(&self, path: &Path) -> bool {
        self.0.iter().any(|globs| globs.matchers.iter().any(|matcher| matcher.is_match(path)))
    }

    pub fn hides(&self, path: &Path) -> bool {
        self.0.iter().any(|globs| globs.fit(path))
    }
}

#[cfg(test)]
#[path = "ruled_tests.rs"]
mod tests;
