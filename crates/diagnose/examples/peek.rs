//! peek
use diagnose::quantity::Quantity;
fn main() {
    for dir in std::env::args().skip(1) {
        let evidence = diagnose::collect::from_folder(std::path::Path::new(&dir)).unwrap();
        println!("=== {dir}");
        for found in &evidence.configs { println!("  config {:?} {:?} {} {}", found.side, found.origin, found.place(), found.config.settings.len()); }
        for e in &evidence.edits { println!("  edit {}:{} {}", e.path, e.line, e.text); }
        let case = diagnose::facts::peek(&evidence);
        println!("  now {:?} before {:?} same {} fixed {}", case.now.in_force.as_ref().map(|c| c.place()), case.before.in_force.as_ref().map(|c| c.place()), case.same_process, case.fixed_probe);
        for d in &case.differences { println!("  diff {} {:?} -> {:?}", d.key, d.a, d.b); }
        for q in Quantity::ALL {
            let f = |v: &diagnose::facts::SideView| v.facts.fact(*q).map(|f| format!("{:.3} [{:.3},{:.3}] n{} {}", f.estimate.value, f.estimate.lo, f.estimate.hi, f.estimate.n, f.source));
            let (a, b) = (f(&case.before), f(&case.now));
            if a.is_some() || b.is_some() { println!("  {:28} {:60} | {}", q.name(), a.unwrap_or_default(), b.unwrap_or_default()); }
        }
        println!("  rates {:?}", case.rates());
    }
}
