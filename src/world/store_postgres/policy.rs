//! The policy of the database, for everybody who uses it; see `docs/operators/policy.md`.

use std::time::Duration;

use super::Postgres;
use super::connections::param;
use epitome_store::StoreError;

/// How long a change is not noticed, at most, while the database can be reached.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A policy, and who has set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPolicy {
    pub text: String,
    /// The database's user, and when, in words.
    pub changed: String,
}

impl Postgres {
    /// `None` if there is no policy.
    pub fn policy(&self) -> Result<Option<StoredPolicy>, StoreError> {
        let shared = self.0.clone();
        self.run(async move { shared.policy().await })
    }

    /// Replaces the policy, or removes it. Fails if the user may not do that.
    pub fn set_policy(&self, text: Option<&str>) -> Result<(), StoreError> {
        let sql = match text {
            Some(_) => {
                "insert into epitome_policy (text) values ($1) on conflict (is_only) do update \
                 set text = excluded.text, changed_by = current_user, changed_at = now()"
            }
            None => "delete from epitome_policy",
        };
        self.query("set the policy", sql, text.map(str::to_owned).map(param).into_iter().collect()).map(drop)
    }

    /// Calls `apply` with each other policy than `known`. While the database can't be reached, the last one stays.
    pub fn watch_policy(
        &self,
        mut known: Option<StoredPolicy>,
        apply: impl Fn(Option<&StoredPolicy>) + Send + 'static,
    ) {
        let weak = std::sync::Arc::downgrade(&self.0);
        self.0.spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(shared) = weak.upgrade() else { return };
                match shared.policy().await {
                    Ok(found) if found == known => {}
                    Ok(found) => {
                        tracing::info!("the policy in the database has changed");
                        apply(found.as_ref());
                        known = found;
                    }
                    Err(error) => tracing::warn!(%error, "the policy was not read again"),
                }
            }
        });
    }
}

impl super::Shared {
    async fn policy(&self) -> Result<Option<StoredPolicy>, StoreError> {
        let sql = "select text, changed_by || ', ' || to_char(changed_at, 'YYYY-MM-DD HH24:MI TZ') from epitome_policy";
        let rows = self.connections.query("read the policy", sql, Vec::new()).await?;
        Ok(rows.first().map(|row| StoredPolicy { text: row.get(0), changed: row.get(1) }))
    }
}
