// Checks metrics by the rules of `promtool check metrics`, with the library that it uses. Debian 13 has no promtool.
//
//	promlint < metrics
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	problems, err := promlint.New(os.Stdin).Lint()
	if err != nil {
		fmt.Fprintln(os.Stderr, "the metrics cannot be read:", err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Fprintf(os.Stderr, "%s: %s\n", problem.Metric, problem.Text)
	}
	if len(problems) > 0 {
		os.Exit(3)
	}
}
