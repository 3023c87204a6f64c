//! Whether a server can hold the state: its version, and that it evicts nothing.

/// Why a server cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Too old: streams cannot be trimmed by id.
    #[error("Redis {found} is too old: 6.2 or newer is needed")]
    Version {
        /// What it says.
        found: String,
    },
    /// It drops keys when its memory is full, which looks like lost events.
    #[error(
        "Redis may evict keys (maxmemory-policy is {policy}): set maxmemory-policy to noeviction, or name another Redis in kv_events.redis.url"
    )]
    Evicts {
        /// What it says.
        policy: String,
    },
    /// It does not say.
    #[error("Redis does not say {0}: allow the user the command INFO")]
    Silent(&'static str),
}

/// Judges a server by the text of `INFO` (the sections server and memory).
pub(crate) fn judge(info: &str) -> Result<(), Unfit> {
    let value = |name: &'static str| {
        let mut lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value).ok_or(Unfit::Silent(name))
    };
    let version = value("redis_version")?;
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 2) {
        return Err(Unfit::Version { found: version.to_owned() });
    }
    match value("maxmemory_policy")? {
        "noeviction" => Ok(()),
        policy => Err(Unfit::Evicts { policy: policy.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: &str, policy: &str) -> String {
        format!(
            "# Server\r\nredis_version:{version}\r\nos:Linux\r\n\r\n# Memory\r\nmaxmemory_policy:{policy}\r\n"
        )
    }

    #[test]
    fn old_and_evicting_servers_are_unfit_and_told_what_to_do() {
        assert_eq!(judge(&info("7.0.15", "noeviction")), Ok(()));
        assert_eq!(judge(&info("6.2.0", "noeviction")), Ok(()));
        assert_eq!(judge(&info("6.0.16", "noeviction")), Err(Unfit::Version { found: "6.0.16".into() }));
        // Every key here expires, so a policy for those alone evicts them as well.
        for policy in ["allkeys-lru", "volatile-ttl"] {
            let unfit = judge(&info("7.0.15", policy)).unwrap_err();
            assert!(unfit.to_string().contains("set maxmemory-policy to noeviction"), "{unfit}");
        }
        assert_eq!(judge("redis_version:7.0.15\r\n"), Err(Unfit::Silent("maxmemory_policy")));
    }
}
