//! What is made of the command line itself: completions of shells, and manual pages.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failed;
use crate::standard_output::print;

/// The arguments of `encke completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// The arguments of `encke man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory for the pages, such as /usr/local/share/man/man1; created if missing
    directory: PathBuf,
}

/// Prints the completions of a shell.
pub(crate) fn completions(
    mut command: Command,
    args: &CompletionsArgs,
) -> Result<ExitCode, Failed> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut text);
    print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a manual page for each command.
pub(crate) fn man(command: Command, args: &ManArgs) -> Result<ExitCode, Failed> {
    let directory = &args.directory;
    let why = || {
        format!(
            "the manual pages can't be written to {}",
            directory.display()
        )
    };
    std::fs::create_dir_all(directory).with_context(why)?;
    clap_mangen::generate_to(command, directory).with_context(why)?;
    Ok(ExitCode::SUCCESS)
}
