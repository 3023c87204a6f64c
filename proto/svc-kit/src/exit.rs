//! A process from its arguments to its exit code.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::config::ConfigError;
use crate::telemetry::TelemetryError;

/// How long tasks that are still running at the end may take to notice: the last line on standard error is to be why the process ends,
/// not what they say about it.
const LEFT_RUNNING: Duration = Duration::from_secs(1);

/// The exit codes every Armature binary shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Drained and stopped, or had nothing to do.
    Success,
    /// Something failed while running; the log says what.
    Failure,
    /// The command line or the configuration is wrong; restarting will not help (`EX_USAGE` of sysexits.h).
    Configuration,
}

impl Exit {
    /// The number the operating system sees.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Configuration => 64,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a process ends badly, and with which code. Shown as its causes from the outermost to the first, on one line.
#[derive(Debug)]
pub struct Failed {
    exit: Exit,
    during: Option<String>,
    cause: Box<dyn Error + Send + Sync>,
}

impl Failed {
    /// The process was set up wrongly: starting it again will not help.
    pub fn configuration(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { exit: Exit::Configuration, during: None, cause: cause.into() }
    }

    /// Something went wrong that may be better at the next start.
    pub fn running(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { exit: Exit::Failure, during: None, cause: cause.into() }
    }

    /// Says what was being done.
    #[must_use]
    pub fn during(self, what: impl Into<String>) -> Self {
        Self { during: Some(what.into()), ..self }
    }

    /// The code of the process.
    pub fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(during) = &self.during {
            write!(f, "{during}: ")?;
        }
        write!(f, "{}", self.cause)?;
        let mut cause = self.cause.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl From<ConfigError> for Failed {
    fn from(error: ConfigError) -> Self {
        Self::configuration(error)
    }
}

impl From<TelemetryError> for Failed {
    fn from(error: TelemetryError) -> Self {
        Self::configuration(error)
    }
}

/// Runs `program`: reads its arguments, runs `body` with them on a runtime, ends what `body` has left running, and says last why it ends
/// if it ends badly. A wrong command line is a wrong configuration.
pub fn run<A, F>(program: &str, body: impl FnOnce(A) -> F) -> ExitCode
where
    A: Parser,
    F: Future<Output = Result<(), Failed>>,
{
    let args = match A::try_parse() {
        Ok(args) => args,
        Err(told) => {
            let exit = if told.use_stderr() { Exit::Configuration } else { Exit::Success };
            // Nobody is left to tell when the output is gone; the same below.
            let _ = told.print();
            return exit.into();
        }
    };
    let ended = tokio::runtime::Runtime::new().map_err(Failed::running).and_then(|runtime| {
        let ended = runtime.block_on(Box::pin(body(args)));
        runtime.shutdown_timeout(LEFT_RUNNING);
        ended
    });
    match ended {
        Ok(()) => Exit::Success.into(),
        Err(failed) => {
            let _ = writeln!(std::io::stderr(), "{program}: {failed}");
            failed.exit().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_told_once_in_one_line() {
        let error = ConfigError::File {
            path: "/etc/armature.toml".into(),
            source: std::io::Error::other("no such file"),
        };
        let failed = Failed::from(error);
        assert_eq!(failed.exit(), Exit::Configuration);
        assert_eq!(
            failed.during("cannot start").to_string(),
            "cannot start: cannot read the configuration file /etc/armature.toml: no such file"
        );
    }
}
