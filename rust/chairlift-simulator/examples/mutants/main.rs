//! Puts the bugs of other engines into a copy of the core, one at a time, and lets the simulator find them.
//!
//! `cargo run --example mutants [NAME ...]` prints the table of all bugs, or of those named; a run that catches all of them also
//! puts its lines into `docs/internals/planted-bugs.md`. The core itself carries no trace of them: each is a change of its text. A
//! test holds that every change still applies, and that the document says how many there are.
#![allow(clippy::print_stdout, reason = "a command")]

mod table;
mod tenants;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use table::{MUTANTS, Mutant, OF_TEXT};
use tenants::OF_TENANTS;

/// What the simulator may spend on one bug, in steps; a hunt that long has failed.
const MAX_STEPS: &str = "40_000_000";

const HEAD: [&str; 2] = [
    "| bug | seen in | what goes wrong | seed | steps | seconds | events | the simulator says |",
    "| --- | --- | --- | --: | --: | --: | --: | --- |",
];

fn main() -> ExitCode {
    let names: Vec<_> = env::args().skip(1).collect();
    let is_chosen = |mutant: &&Mutant| {
        let mut chosen = names.iter();
        names.is_empty() || chosen.any(|name| name == mutant.name)
    };
    println!("{}", HEAD.join("\n"));
    let (mut lines, mut caught) = (Vec::new(), 0);
    for mutant in mutants().filter(is_chosen) {
        let found = hunt(mutant);
        caught += usize::from(matches!(found, Ok(Some(_))));
        let found = match found {
            Ok(found) => found.unwrap_or_else(|| "| | | | **not caught**".into()),
            Err(error) => format!("| | | | {error}"),
        };
        let (name, peer, what) = (mutant.name, mutant.peer, mutant.what);
        let line = format!("| {name} | {peer} | {what} | {found} |");
        println!("{line}");
        lines.push(line);
    }
    println!("\n{caught} of {} caught", lines.len());
    if caught == lines.len()
        && let Err(error) = document(&lines)
    {
        println!("{DOCUMENT}: {error}");
        return ExitCode::FAILURE;
    }
    if caught == lines.len() && caught > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

const DOCUMENT: &str = "docs/internals/planted-bugs.md";
const BEGIN: &str = "<!-- make mutants -->\n";
const END: &str = "<!-- end -->\n";

fn mutants() -> impl Iterator<Item = &'static Mutant> {
    MUTANTS.iter().chain(OF_TEXT).chain(OF_TENANTS)
}

fn summary(caught: usize, all: usize) -> String {
    let rest = if caught < all {
        "; the others were not run since they were added"
    } else {
        ""
    };
    format!("{caught} of {all} caught{rest}:\n")
}

/// The document before, between and after the marks of the table.
fn documented() -> io::Result<[String; 3]> {
    let text = fs::read_to_string(workspace().join(DOCUMENT))?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
        let (between, after) = rest.split_once(END)?;
        Some([before, between, after].map(str::to_owned))
    });
    parts.ok_or_else(|| io::Error::other("the marks are missing"))
}

/// Puts lines of bugs that were caught into the table of the document; other bugs keep theirs.
fn document(lines: &[String]) -> io::Result<()> {
    let [before, between, after] = documented()?;
    let known: Vec<_> = lines
        .iter()
        .map(String::as_str)
        .chain(between.lines())
        .collect();
    let line = |mutant: &Mutant| {
        let start = format!("| {} | ", mutant.name);
        known.iter().find(|line| line.starts_with(&start)).copied()
    };
    let table: Vec<_> = mutants().filter_map(line).collect();
    let summary = summary(table.len(), mutants().count());
    let table = [&HEAD[..], &table].concat().join("\n");
    fs::write(
        workspace().join(DOCUMENT),
        format!("{before}{BEGIN}{summary}\n{table}\n{END}{after}"),
    )
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds the simulator over a core with this bug and runs it: of the first failure the seed, the steps and seconds that
/// it took, the events to which it shrinks, and what is wrong.
fn hunt(mutant: &Mutant) -> io::Result<Option<String>> {
    let workspace = workspace();
    let copy = workspace.join("target/mutants");
    fs::create_dir_all(&copy)?;
    for entry in ["Cargo.toml", "Cargo.lock", "rust"] {
        copy_changed(&workspace.join(entry), &copy.join(entry), mutant)?;
    }
    let build = cargo(&copy)
        .args(["build", "--release", "--quiet"])
        .args(PACKAGE)
        .output()?;
    if !build.status.success() {
        return Err(io::Error::other(
            String::from_utf8_lossy(&build.stderr).into_owned(),
        ));
    }
    let mut run = cargo(&copy);
    run.args(["run", "--release", "--quiet"]).args(PACKAGE);
    let run = run.args(["--", "--brief", "--steps", MAX_STEPS]).output()?;
    let out = String::from_utf8_lossy(&run.stdout).into_owned();
    let failure = out.lines().find_map(|line| line.strip_prefix("failed: "));
    let parts = failure.and_then(|line| line.split_once(": "));
    Ok(parts.map(|(place, sentence)| format!("{place} | {sentence}")))
}

const PACKAGE: [&str; 2] = ["--package", "chairlift-simulator"];

/// Cargo in the copy; each bug is built once and found soon, so building fast beats running fast.
fn cargo(copy: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .env("CARGO_INCREMENTAL", "1")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("RUSTFLAGS", "--cap-lints=allow");
    cargo
}

/// Copies a file or folder, changed by the mutant; files that are right already keep their time, so that only what
/// changed is built.
fn copy_changed(from: &Path, to: &Path, mutant: &Mutant) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy_changed(&from.join(&name), &to.join(&name), mutant)?;
        }
        return Ok(());
    }
    let mut content = fs::read(from)?;
    if from == mutant.path() {
        content = mutant
            .apply(&String::from_utf8_lossy(&content))
            .map_err(io::Error::other)?
            .into_bytes();
    }
    if fs::read(to).ok().as_ref() != Some(&content) {
        fs::write(to, content)?;
    }
    Ok(())
}

impl Mutant {
    fn path(&self) -> PathBuf {
        let source = workspace().join("rust").join(self.package).join("src");
        source.join(self.file)
    }

    /// The text with the bug in it.
    fn apply(&self, text: &str) -> Result<String, String> {
        let mut text = text.to_owned();
        for (old, new) in self.changes {
            let times = text.matches(old).count();
            if times != 1 {
                return Err(format!(
                    "{}: {} has {times} times {old:?}",
                    self.name, self.file
                ));
            }
            text = text.replacen(old, new, 1);
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_still_applies() {
        let applied = mutants().map(|mutant| {
            let text = fs::read_to_string(mutant.path()).expect("a source file");
            mutant.apply(&text)
        });
        let stale: Vec<_> = applied.filter_map(Result::err).collect();
        assert!(stale.is_empty(), "{stale:#?}");
    }

    #[test]
    fn the_document_says_how_many_bugs_there_are_and_were_caught() {
        let [_, between, _] = documented().expect("the document has a table");
        let named = between.lines().filter_map(|line| line.strip_prefix("| "));
        let named: Vec<_> = named.filter_map(|line| line.split(' ').next()).collect();
        let caught = mutants().filter(|mutant| named.contains(&mutant.name));
        let caught: Vec<_> = caught.map(|mutant| mutant.name).collect();
        assert_eq!(named[2..], caught, "lines in the order of the table");
        assert!(between.starts_with(&summary(caught.len(), mutants().count())));
    }
}
