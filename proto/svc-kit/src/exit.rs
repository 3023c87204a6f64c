//! What a service's process says when it ends.

use std::process::ExitCode;

/// The exit codes every Armature binary shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Drained and stopped, or had nothing to do.
    Success,
    /// Something failed while running; the log says what.
    Failure,
    /// The configuration is wrong; restarting will not help (`EX_USAGE` of sysexits.h).
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
