// Checks configurations, rules and queries of Prometheus, with the libraries that promtool uses. Debian 13 has no promtool.
//
//	promrules config FILE     like promtool check config
//	promrules rules FILE      like promtool check rules
//	promrules test FILE       like promtool test rules, for tests of alerts
//	promrules queries         reads an array of queries from standard input, and prints the series that each selects
//	promrules json FILE       prints a file of YAML as JSON
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/go-kit/log"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/rulefmt"
	"gopkg.in/yaml.v3"
)

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("usage: promrules config|rules|test|queries|json [FILE]"))
	}
	var file string
	if len(os.Args) > 2 {
		file = os.Args[2]
	}
	switch os.Args[1] {
	case "config":
		_, err := config.LoadFile(file, false, false, log.NewNopLogger())
		fail(err)
	case "rules":
		_, errs := rulefmt.ParseFile(file)
		fail(errs...)
	case "test":
		fail(testRules(file)...)
	case "queries":
		fail(describeQueries(os.Stdin, os.Stdout))
	case "json":
		fail(printJSON(file))
	default:
		fail(fmt.Errorf("there is no command %q", os.Args[1]))
	}
}

// fail prints errors and ends the program, if there are any.
func fail(errs ...error) {
	failed := false
	for _, err := range errs {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func printJSON(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var content any
	if err := yaml.Unmarshal(text, &content); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return json.NewEncoder(os.Stdout).Encode(content)
}
