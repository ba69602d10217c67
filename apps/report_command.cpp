// `troupe report RUN_FOLDER`: writes report.html anew.
#include <iostream>

#include "apps/commands.h"
#include "apps/report.h"

namespace troupe::apps {

void add_report(CLI::App& app, Action& action) {
  auto folder = std::make_shared<std::string>();
  auto* command = app.add_subcommand("report", "write report.html of a run (also of one that still goes on)");
  command->add_option("run_folder", *folder, "run folder")->required();
  command->callback([folder, &action] {
    action = [folder] {
      write_report(*folder);
      std::cout << (std::filesystem::path(*folder) / "report.html").string() << "\n";
      return 0;
    };
  });
}

}  // namespace troupe::apps
