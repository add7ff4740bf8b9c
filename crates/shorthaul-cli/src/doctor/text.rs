//! The findings for people: a table for each group, then what to do about what is not fine.

use std::io::{self, Write};

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};

use super::finding::{Finding, Findings, Group, Verdict};

pub(super) fn write(output: &mut dyn Write, findings: &Findings, width: usize) -> io::Result<()> {
    for group in Group::ALL {
        let of_it = findings.0.iter().filter(|finding| finding.group == group);
        let of_it: Vec<&Finding> = of_it.collect();
        if !of_it.is_empty() {
            writeln!(output, "{}", group.title())?;
            write_table(output, &of_it, width)?;
            writeln!(output)?;
        }
    }
    for finding in &findings.0 {
        write_remedy(output, finding, width)?;
    }
    // In one line, however wide: for `tail -1`.
    writeln!(output, "{}", findings.conclusion())
}

fn write_table(output: &mut dyn Write, findings: &[&Finding], width: usize) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    for finding in findings {
        table.add_row([finding.verdict.name(), finding.what, &finding.found]);
    }
    let rest = width.saturating_sub(VERDICT_WIDTH + WHAT_WIDTH);
    let widths = [VERDICT_WIDTH, WHAT_WIDTH, rest];
    for (column, width) in table.column_iter_mut().zip(widths) {
        let width = Width::Fixed(u16::try_from(width).unwrap_or(u16::MAX));
        column.set_constraint(ColumnConstraint::Absolute(width));
        column.set_padding((0, 2));
    }
    for line in table.lines() {
        writeln!(output, "  {}", line.trim_end())?;
    }
    Ok(())
}

/// Of what is fine there is nothing to say.
fn write_remedy(output: &mut dyn Write, finding: &Finding, width: usize) -> io::Result<()> {
    if finding.verdict == Verdict::Ok {
        return Ok(());
    }
    let Finding { verdict, what, id, meaning, remedy, .. } = finding;
    writeln!(output, "{}: {what} [{id}]", verdict.name())?;
    write!(output, "{}", wrapped(meaning, width, "    "))?;
    if let Some(remedy) = remedy {
        write!(output, "{}", wrapped(&format!("What to do: {remedy}"), width, "    "))?;
    }
    writeln!(output)
}

/// In lines of at most `width`, each begun with `indent`; a command in `backquotes` is kept whole.
fn wrapped(text: &str, width: usize, indent: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in words(text) {
        let is_full = indent.len() + line.chars().count() + 1 + word.chars().count() > width;
        if !line.is_empty() && is_full {
            lines += &format!("{indent}{line}\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += &word;
    }
    lines + &format!("{indent}{line}\n")
}

fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_inside = false;
    for word in text.split(' ') {
        match words.last_mut() {
            Some(last) if is_inside => *last += &format!(" {word}"),
            _ => words.push(word.to_owned()),
        }
        is_inside ^= word.matches('`').count() % 2 == 1;
    }
    words
}

const VERDICT_WIDTH: usize = 10;
const WHAT_WIDTH: usize = 36;
