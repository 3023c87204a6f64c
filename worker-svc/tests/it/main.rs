//! Integration tests of the worker: one binary, a file per behaviour.

mod llama;
mod transfer;
