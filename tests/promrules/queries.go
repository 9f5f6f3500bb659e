package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// selection is the series that a part of a query selects.
type selection struct {
	Metric string              `json:"metric"`
	Values map[string][]string `json:"values"` // The values that matchers name, by label.
	Rated  bool                `json:"rated"`  // Below a function of counters.
}

// grouping is the labels that an aggregation or a match keeps, and the metrics that must have them.
type grouping struct {
	Labels  []string `json:"labels"`
	Metrics []string `json:"metrics"`
}

type query struct {
	Selections []selection `json:"selections"`
	Groupings  []grouping  `json:"groupings"`
}

// Functions whose argument is a counter.
var ofCounters = map[string]bool{"rate": true, "irate": true, "increase": true, "resets": true}

// describeQueries reads an array of queries, and writes an array with a description of each.
func describeQueries(in io.Reader, out io.Writer) error {
	var texts []string
	if err := json.NewDecoder(in).Decode(&texts); err != nil {
		return err
	}
	described := []query{}
	for _, text := range texts {
		expression, err := parser.ParseExpr(text)
		if err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		described = append(described, describeQuery(expression))
	}
	return json.NewEncoder(out).Encode(described)
}

func describeQuery(expression parser.Expr) query {
	found := query{Selections: []selection{}, Groupings: []grouping{}}
	parser.Inspect(expression, func(node parser.Node, path []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			found.Selections = append(found.Selections, selection{node.Name, valuesOf(node.LabelMatchers), isRated(path)})
		case *parser.AggregateExpr:
			if !node.Without && len(node.Grouping) > 0 {
				found.Groupings = append(found.Groupings, grouping{node.Grouping, metricsOf(node.Expr)})
			}
		case *parser.BinaryExpr:
			if matching := node.VectorMatching; matching != nil && matching.On && len(matching.MatchingLabels) > 0 {
				for _, side := range []parser.Expr{node.LHS, node.RHS} {
					found.Groupings = append(found.Groupings, grouping{matching.MatchingLabels, metricsOf(side)})
				}
			}
		}
		return nil
	})
	return found
}

func metricsOf(expression parser.Expr) []string {
	metrics := []string{}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		if node, ok := node.(*parser.VectorSelector); ok {
			metrics = append(metrics, node.Name)
		}
		return nil
	})
	return metrics
}

// valuesOf returns the values that matchers name; of an expression such as "a|b" each.
func valuesOf(matchers []*labels.Matcher) map[string][]string {
	values := map[string][]string{}
	for _, matcher := range matchers {
		if matcher.Name == labels.MetricName {
			continue
		}
		named := []string{matcher.Value}
		if matcher.Type == labels.MatchRegexp || matcher.Type == labels.MatchNotRegexp {
			named = strings.Split(matcher.Value, "|")
		}
		values[matcher.Name] = append(values[matcher.Name], named...)
	}
	return values
}

func isRated(path []parser.Node) bool {
	for _, node := range path {
		if call, ok := node.(*parser.Call); ok && ofCounters[call.Func.Name] {
			return true
		}
	}
	return false
}
