//! Systemd units: what is in force, what a drop-in hides, and what lies beside as a backup.

use std::collections::BTreeMap;

use dialects::unit::{Unit, environment_file};

use super::{Dug, Entry, Found, Origin, Tree};

/// The files of one unit.
#[derive(Default)]
struct Files<'a> {
    main: Option<&'a Entry>,
    backups: Vec<&'a Entry>,
    drop_ins: Vec<&'a Entry>,
    disabled: Vec<&'a Entry>,
}

/// A unit's own name and whether the file is a copy put aside: `x.service.bak-1` is a copy of `x.service`.
fn unit_name(file: &str) -> Option<(&str, bool)> {
    let end = file.find(".service")? + ".service".len();
    Some((&file[..end], end < file.len()))
}

pub(super) fn dig(tree: &Tree, dug: &mut Dug) {
    let mut units: BTreeMap<String, Files<'_>> = BTreeMap::new();
    for entry in &tree.entries {
        let path = entry.path.as_str();
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        if let Some(unit) = folder.strip_suffix(".service.d") {
            let files = units.entry(format!("{unit}.service")).or_default();
            if file.ends_with(".conf") {
                files.drop_ins.push(entry)
            } else {
                files.disabled.push(entry)
            }
        } else if let Some((unit, aside)) = unit_name(file) {
            let files = units.entry(format!("{folder}/{unit}")).or_default();
            if aside { files.backups.push(entry) } else { files.main = Some(entry) }
        }
    }
    for (unit, files) in &units {
        dig_unit(tree, unit, files, dug);
    }
}

fn dig_unit(tree: &Tree, unit: &str, files: &Files<'_>, dug: &mut Dug) {
    let name = unit.rsplit('/').next().unwrap_or(unit);
    let layered = |layers: &[&Entry]| {
        let mut merged = Unit::default();
        for layer in layers {
            merged.apply(&tree.text(layer).unwrap_or_default());
        }
        merged
    };
    let in_force: Vec<&Entry> =
        files.main.into_iter().chain(files.drop_ins.iter().copied()).collect();
    let merged = layered(&in_force);
    dug.found.extend(found(tree, &merged, &in_force, name, Origin::Unit));
    if let Some(main) = files.main
        && merged.exec_start.iter().any(|exec| exec.text > 0)
    {
        dug.found.extend(found(tree, &layered(&[main]), &[main], name, Origin::UnitWithoutDropIn));
    }
    for &backup in &files.backups {
        dug.found.extend(found(tree, &layered(&[backup]), &[backup], name, Origin::Backup));
    }
    for &disabled in &files.disabled {
        let layers: Vec<&Entry> = files.main.into_iter().chain([disabled]).collect();
        let merged = layered(&layers);
        // Without an ExecStart of its own it would only repeat the main unit.
        if merged.exec_start.iter().any(|exec| exec.text + 1 == layers.len())
            || merged.environment != layered(&layers[..layers.len() - 1]).environment
        {
            dug.found.extend(found(tree, &merged, &layers, name, Origin::DisabledDropIn));
        }
    }
    for path in &merged.environment_files {
        for copy in copies_of(tree, path) {
            let environment = environment_file(&tree.text(copy).unwrap_or_default());
            for (_, command) in merged.commands(&environment, instance(name)) {
                dug.found.push(Found {
                    side: copy.side,
                    origin: Origin::Backup,
                    path: copy.path.clone(),
                    line: None,
                    time: None,
                    name: name.to_owned(),
                    config: command.config,
                    command: Some(command.line),
                });
            }
        }
    }
}

/// Copies that lie beside a file: `path.bak`, `path~`.
fn copies_of<'a>(tree: &'a Tree, path: &'a str) -> impl Iterator<Item = &'a Entry> {
    let wanted = path.trim_start_matches('/');
    tree.entries.iter().filter(move |entry| {
        entry.host_path().len() > wanted.len() && entry.host_path().starts_with(wanted)
    })
}

/// The part between `@` and `.service`.
fn instance(name: &str) -> &str {
    name.split_once('@').map_or("", |(_, rest)| rest.trim_end_matches(".service"))
}

fn found(tree: &Tree, unit: &Unit, layers: &[&Entry], name: &str, origin: Origin) -> Vec<Found> {
    let side = layers.last().map_or(crate::evidence::Side::Open, |layer| layer.side);
    let environment: Vec<(String, String)> = unit
        .environment_files
        .iter()
        .filter_map(|path| tree.find(path, side))
        .flat_map(|entry| environment_file(&tree.text(entry).unwrap_or_default()))
        .collect();
    unit.commands(&environment, instance(name))
        .into_iter()
        .map(|(exec, mut command)| {
            super::scripts::add_config_file(tree, side, &mut command);
            let layer = layers.get(exec.text).or(layers.last());
            let path = match origin {
                Origin::DisabledDropIn => layers.last(),
                _ => layer,
            };
            Found {
                side,
                origin,
                path: path.map_or_else(String::new, |layer| layer.path.clone()),
                line: Some(exec.line_no),
                time: None,
                name: name.to_owned(),
                config: command.config,
                command: Some(command.line),
            }
        })
        .collect()
}
