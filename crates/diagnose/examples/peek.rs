//! peek
fn main() {
    for dir in std::env::args().skip(1) {
        let evidence = diagnose::collect::from_folder(std::path::Path::new(&dir)).unwrap();
        println!("=== {dir}");
        let report = diagnose::report::build(&evidence);
        println!("{}", diagnose::render::text(&report));
        if std::env::var("J").is_ok() { println!("{}", serde_json::to_string_pretty(&diagnose::render::json(&report)).unwrap()); }
    }
}
